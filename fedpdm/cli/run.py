"""The commands `fedpdm run` and `fedpdm report`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpdm.choices.words import LARGE_FILE
from fedpdm.cli.completion import complete_config
from fedpdm.cli.interrupt import when_interrupted
from fedpdm.cli.options import DataDirOption, JsonOption, SetOption
from fedpdm.cli.tables import preset_for, table_settings
from fedpdm.errors import ConfigError

__all__ = ["report_command", "run_command"]

SHOWN = 5  # features that a line of the path names
CONVERGED = "Converged: the stationarity measure is below rounds.tolerance."
LITTLE = 0.001  # share of the objective: if half of the rounds lowers it by less, the other half as many again lower it by less
TrackOption = Annotated[
    list[str] | None, typer.Option(help="Also write to mlflow or tensorboard; may be repeated (see docs/tracking.md).")
]


def run_command(
    config: Annotated[
        str | None,
        typer.Argument(
            help="A TOML file, or the name of a preset (default: demo; with --data: table, or mapped for images and texts; "
            "with --epsilon: private-table, or private-mapped).",
            autocompletion=complete_config,
        ),
    ] = None,
    settings: SetOption = None,
    data: Annotated[str | None, typer.Option(help="Your own table: CSV, Parquet, NPZ, LibSVM, or a folder of images.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of the table to predict.")] = None,
    client_column: Annotated[str | None, typer.Option(help="The column with the owner of a row.")] = None,
    schema: Annotated[str | None, typer.Option(help="Public bounds and levels of its columns (fedpdm data schema).")] = None,
    test: Annotated[str | None, typer.Option(help="Another table to test on.")] = None,
    test_share: Annotated[float | None, typer.Option(help="Share of every client's rows to test on (default: 0.2).")] = None,
    unit: Annotated[str | None, typer.Option(help="The column with the person of a row: the unit of the guarantee.")] = None,
    min_rows: Annotated[int | None, typer.Option(help="Join clients with fewer rows into one (default: no).")] = None,
    event: Annotated[
        str | None, typer.Option(help="The column that says whether the event was observed; the label is the time to it.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget; your own table then needs --schema.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder (default: a new one below runs/).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    track: TrackOption = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            help="One simulation on several hosts: NUMBER/COUNT@ADDRESS:PORT of host 0, or auto (docs/performance.md)."
        ),
    ] = None,
    path: Annotated[
        bool, typer.Option("--path", help="Also test the finished model with fewer and fewer weights; costs no privacy.")
    ] = False,
) -> None:
    """Train a federated model.

    \b
    Examples:
      fedpdm run demo
      fedpdm run paper-mnist --set rounds.total=50 --out runs/mine
      fedpdm run --data people.csv --label income --client-column hospital
      fedpdm run --data people.csv --schema people.schema.toml --epsilon 1
      fedpdm run demo --path --set problem.sparsity=0.5
      fedpdm run --data photos/ --client-column client
      fedpdm run --resume runs/mine
    """
    if data and not quiet:
        _announce(Path(data))
    from fedpdm.config import load_config
    from fedpdm.runs.folder import RunFolder
    from fedpdm.runs.train import new_run_path

    shorthand = table_settings(
        data=data,
        label=label,
        client_column=client_column,
        schema=schema,
        test=test,
        test_share=test_share,
        epsilon=epsilon,
        unit=unit,
        min_rows=min_rows,
        event=event,
    )
    shorthand += ["metrics.path=true"] if path else []
    if resume and (config or settings or shorthand or out):
        raise ConfigError("--resume uses the settings and the folder of the run: remove CONFIG, --set and other flags.")
    if resume:
        note = "This run was complete already." if RunFolder(resume).summary() else None
        _train(resume, {"resume": resume}, data_dir, as_json, quiet, track, hosts, note)
        return
    name = config or preset_for(data, schema, epsilon, (label, client_column, unit, event), settings or ())
    chosen = load_config(name, [*shorthand, *(settings or ())])
    folder = out or new_run_path(data or name)
    _train(folder, {"config": chosen, "out": folder}, data_dir, as_json, quiet, track, hosts)


def _announce(table: Path) -> None:
    """Say at once that a large table is worked on: the imports alone take seconds."""
    if table.is_file() and (size := table.stat().st_size) > LARGE_FILE:
        print(f"{table}: {size / 1e6:.0f} MB, starting", file=sys.stderr, flush=True)


def _train(
    path: Path,
    what: dict[str, Any],
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
    track: list[str] | None,
    hosts: str | None,
    note: str | None = None,
) -> None:
    from fedpdm.engines.simulation.hosts import is_first, join
    from fedpdm.runs.folder import RunFolder
    from fedpdm.training import train

    if hosts:
        if "out" in what and hosts.startswith("0/"):
            RunFolder.check_free(path)  # before the others wait for this host
        join(hosts)
    with when_interrupted(f"interrupted. Continue with: fedpdm run --resume {path}"):
        run = train(**what, data_dir=data_dir, progress=not quiet, track=track or ())
    if is_first():
        _report(run.folder, run.summary, as_json, note)
    else:
        print("Done. The first host has the run folder.")


def report_command(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of `fedpdm reproduce`.")],
    out: Annotated[
        Path | None, typer.Option(help="The file (default: report.html in the run folder, or here for several).")
    ] = None,
) -> None:
    """Write one HTML page about runs: accuracy, guarantee, curves, model, clients. It needs no network.

    \b
    Examples:
      fedpdm report runs/mine
      fedpdm report runs/a runs/b --out compared.html
    """
    from fedpdm.report import write_report

    print(f"Report: {write_report(folders, out)}")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _report(path: Path, summary: dict[str, Any], as_json: bool, note: str | None = None) -> None:
    """Print the results in a few lines."""
    from fedpdm.metrics.words import metric_lines
    from fedpdm.runs.attackers import attack_words
    from fedpdm.runs.folder import RunFolder

    page = path / "report.html"
    if as_json:
        print(json.dumps(summary | {"folder": str(path), "report": str(page)}, indent=2))
        return
    if note:
        print(note)
    if summary["remark"]:
        print(summary["remark"])
    else:
        name = "accuracy" if summary["test_accuracy"] is not None else "loss"
        averaged = RunFolder(path).config().metrics.released == "averaged"
        print(
            f"Test {name} {summary[f'test_{name}']:.4f} (last model), "
            f"{summary[f'test_{name}_averaged']:.4f} (tail average{', which is released' if averaged else ''}); "
            f"{summary['nonzero_fraction']:.1%} of the weights are non-zero."
        )
        for line in metric_lines(summary.get("metrics_averaged" if averaged else "metrics")):
            print(line)
    if "path" in summary and RunFolder(path).config().metrics.path:
        _print_path(summary)
    print(
        f"{summary['rounds']} rounds in {summary['seconds']:.1f} s (compiling: {summary['compile_seconds']:.1f} s); "
        f"{_size(summary['uplink_bytes'])} up, {_size(summary['downlink_bytes'])} down."
    )
    if (converged := summary.get("converged")) is not None:
        print(CONVERGED if converged else _not_converged(summary, RunFolder(path).rows()))
    print(summary["guarantee"])
    if "attackers" in summary:
        print(attack_words(RunFolder(path).config(), summary))
    if refused := summary.get("refused_participations"):
        print(f"{refused} participations were refused: the clients' budgets were used up.")
    print(f"Run folder: {path}")
    print(f"Report: {page}  (open it in a browser)")


def _not_converged(summary: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Say how much the objective still falls, and what to do."""
    said = f"Not converged: after {summary['rounds']} rounds the stationarity measure is {summary['stationarity']:.3g}."
    known = [(row["round"], row["objective"]) for row in rows if row.get("objective")]
    early = [value for number, value in known if number <= summary["rounds"] / 2]
    advice = "Raise rounds.total or rounds.tolerance."
    if early and known[-1][1] > 0:
        fell = early[-1] / known[-1][1] - 1
        said += f" The second half of the rounds lowered the objective by {max(fell, 0.0):.2g} of its value."
        if abs(fell) < LITTLE:
            advice = "More rounds (rounds.total) would change little."
    return f"{said} {advice}"


def _print_path(summary: dict[str, Any]) -> None:
    """Print the figures of the released model by the number of its weights, and the features that stay longest."""
    from fedpdm.runs.thin import path_figures

    points, unit = summary["path"], summary["path_unit"]
    figures = path_figures(points)
    print(f"With fewer weights ({', '.join([f'{unit} kept', 'weights', 'features', *figures.values()])}):")
    for point in points:
        line = f"{point['kept']:9} {point['weights']:9} {point['features']:9}"
        line += "".join(f"  {'' if point[key] is None else f'{point[key]:.4f}':6}" for key in figures)
        print(line + (f"  {', '.join(names[:SHOWN])}" if (names := point["names"]) and len(names) <= SHOWN else ""))
