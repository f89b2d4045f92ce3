"""The commands `fedpdm run` and `fedpdm report`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedpdm.cli.completion import complete_config
from fedpdm.cli.interrupt import interrupted
from fedpdm.cli.options import DataDirOption, JsonOption, SetOption
from fedpdm.cli.tables import table_settings
from fedpdm.errors import ConfigError

__all__ = ["report_command", "run_command"]

CONVERGED = "Converged: the stationarity measure is below rounds.tolerance."
NOT_CONVERGED = (
    "Not converged: after {rounds} rounds the stationarity measure is {stationarity:.3g}. "
    "Raise rounds.total or rounds.tolerance."
)
TrackOption = Annotated[
    list[str] | None, typer.Option(help="Also write to mlflow or tensorboard; may be repeated (see docs/tracking.md).")
]


def run_command(
    config: Annotated[
        str | None,
        typer.Argument(
            help="A TOML file, or the name of a preset (default: demo; with --data: table, with --epsilon: private-table).",
            autocompletion=complete_config,
        ),
    ] = None,
    settings: SetOption = None,
    data: Annotated[str | None, typer.Option(help="Your own table: CSV, Parquet, NPZ or LibSVM.")] = None,
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
) -> None:
    """Train a federated model.

    \b
    Examples:
      fedpdm run demo
      fedpdm run paper-mnist --set rounds.total=50 --out runs/mine
      fedpdm run --data people.csv --label income --client-column hospital
      fedpdm run --data people.csv --schema people.schema.toml --epsilon 1
      fedpdm run --resume runs/mine
    """
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
    if resume and (config or settings or shorthand or out):
        raise ConfigError("--resume uses the settings and the folder of the run: remove CONFIG, --set and other flags.")
    if resume:
        note = "This run was complete already." if RunFolder(resume).summary() else None
        _train(resume, {"resume": resume}, data_dir, as_json, quiet, track, note)
        return
    name = config or ("demo" if not data else "table" if epsilon is None else "private-table")
    chosen = load_config(name, [*shorthand, *(settings or ())])
    path = out or new_run_path(data or name)
    _train(path, {"config": chosen, "out": path}, data_dir, as_json, quiet, track)


def _train(
    path: Path,
    what: dict[str, Any],
    data_dir: Path | None,
    as_json: bool,
    quiet: bool,
    track: list[str] | None,
    note: str | None = None,
) -> None:
    from fedpdm.training import train

    try:
        run = train(**what, data_dir=data_dir, progress=not quiet, track=track or ())
    except KeyboardInterrupt:
        interrupted(f"interrupted. Continue with: fedpdm run --resume {path}")
    _report(run.folder, run.summary, as_json, note)


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
        print(
            f"Test {name} {summary[f'test_{name}']:.4f} (last model), "
            f"{summary[f'test_{name}_averaged']:.4f} (tail average); "
            f"{summary['nonzero_fraction']:.1%} of the weights are non-zero."
        )
        averaged = RunFolder(path).config().metrics.released == "averaged"
        for line in metric_lines(summary.get("metrics_averaged" if averaged else "metrics")):
            print(line)
    print(
        f"{summary['rounds']} rounds in {summary['seconds']:.1f} s (compiling: {summary['compile_seconds']:.1f} s); "
        f"{_size(summary['uplink_bytes'])} up, {_size(summary['downlink_bytes'])} down."
    )
    if (converged := summary.get("converged")) is not None:
        print(CONVERGED if converged else NOT_CONVERGED.format(**summary))
    print(summary["guarantee"])
    if summary["mechanism"] == "sound":
        print("This was a simulation: its noise measures accuracy at that budget, and protects nobody's real data.")
    if refused := summary.get("refused_participations"):
        print(f"{refused} participations were refused: the clients' budgets were used up.")
    print(f"Run folder: {path}")
    print(f"Report: {page}  (open it in a browser)")
