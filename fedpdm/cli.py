"""The command `fedpdm`."""

import contextlib
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpdm import cli_own
from fedpdm.cli_features import features_app
from fedpdm.cli_flower import flower_app
from fedpdm.cli_privacy import privacy_app
from fedpdm.cli_study import register
from fedpdm.config import Config, load_config, preset_names, to_toml
from fedpdm.errors import ConfigError, UserError
from fedpdm.version import __version__

if TYPE_CHECKING:
    from fedpdm.engines.simulation import Simulation
    from fedpdm.runs import RunFolder

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated primal-dual learning of sparse models. Start with `fedpdm run demo`.",
)
config_app = typer.Typer(no_args_is_help=True, help="Look at settings.")
data_app = typer.Typer(no_args_is_help=True, help="Get and describe data sets.")
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(features_app, name="features")
app.add_typer(privacy_app, name="privacy")
app.add_typer(flower_app, name="flower")
register(app)
cli_own.register(app, data_app)

ConfigArgument = Annotated[str, typer.Argument(help="A TOML file, or the name of a preset.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated.")]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder that holds the data files (or set FEDPDM_DATA).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def main() -> None:
    """Run the command; a user's mistake ends in one line and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"fedpdm: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedpdm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    pass


@app.command()
def run(
    config: Annotated[
        str | None, typer.Argument(help="A TOML file, or the name of a preset (default: demo, or table with --data).")
    ] = None,
    settings: SetOption = None,
    data: Annotated[str | None, typer.Option(help="A table of your own: CSV, Parquet, NPZ or LibSVM.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of the table to predict.")] = None,
    client_column: Annotated[str | None, typer.Option(help="The column that says whose row it is.")] = None,
    schema: Annotated[str | None, typer.Option(help="Public bounds and levels of its columns (fedpdm data schema).")] = None,
    test: Annotated[str | None, typer.Option(help="Another table to test on.")] = None,
    test_share: Annotated[float | None, typer.Option(help="Share of every client's rows to test on (default: 0.2).")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of the sound mechanism.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder (default: a new one below runs/).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Train a federated model.

    Examples:  fedpdm run demo  |  fedpdm run paper-mnist --set rounds.total=50 --out runs/mine  |
    fedpdm run --data people.csv --label income --client-column hospital  |  fedpdm run --resume runs/mine
    """
    shorthand = cli_own.own_settings(
        data=data,
        label=label,
        client_column=client_column,
        schema=schema,
        test=test,
        test_share=test_share,
        epsilon=epsilon,
    )
    if resume and (config or settings or shorthand or out):
        raise ConfigError("--resume goes on with the settings and folder of the run: drop CONFIG, --set and other flags.")
    if resume:
        _train(_reopened(resume, data_dir, quiet), as_json, quiet)
        return
    name = config or ("table" if data else "demo")
    chosen = load_config(name, [*shorthand, *(settings or ())])
    path = out or Path("runs") / f"{Path(data or name).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    _train(_created(path, chosen, data_dir, quiet), as_json, quiet)


def _created(path: Path, config: Config, data_dir: Path | None, quiet: bool) -> "tuple[Config, RunFolder, Simulation]":
    from fedpdm import experiment
    from fedpdm.runs import RunFolder

    federation = experiment.build_federation(config, data_dir, progress=not quiet)
    config = experiment.settled(config, federation)
    simulation = experiment.build_simulation(config, federation)
    return config, RunFolder.create(path, config, federation.checksums), simulation


def _reopened(path: Path, data_dir: Path | None, quiet: bool) -> "tuple[Config, RunFolder, Simulation | None]":
    """The run to go on with; no simulation if it is complete."""
    from fedpdm import experiment
    from fedpdm.runs import RunFolder

    folder = RunFolder.reopen(path)
    config = folder.config()
    if folder.summary():
        return config, folder, None
    federation = experiment.build_federation(config, data_dir, progress=not quiet)
    return config, folder, experiment.build_simulation(config, federation)


def _train(run: "tuple[Config, RunFolder, Simulation | None]", as_json: bool, quiet: bool) -> None:
    from fedpdm import experiment
    from fedpdm.progress import Progress

    config, folder, simulation = run
    with contextlib.closing(folder):
        if simulation is None:
            _report(folder.path, folder.summary() or {}, as_json, note="This run was complete already.")
            return
        with Progress(config.rounds.total, enabled=not quiet) as progress:
            try:
                summary = experiment.run(config, folder, simulation, progress.update)
            except KeyboardInterrupt:
                print(f"\nfedpdm: interrupted. Go on with: fedpdm run --resume {folder.path}", file=sys.stderr)
                sys.exit(130)
        _report(folder.path, summary, as_json)


@app.command()
def presets() -> None:
    """List the presets."""
    for name in preset_names():
        c = load_config(name)
        print(
            f"{name:12s} {c.data.name}, {c.data.clients} clients, {c.problem.loss} loss, "
            f"{c.algorithm.name} with rho={c.algorithm.rho:g}, {c.rounds.total} rounds"
        )


@config_app.command("show")
def config_show(config: ConfigArgument, settings: SetOption = None) -> None:
    """Print the full settings as TOML, with comments, to start a file from."""
    print(to_toml(load_config(config, settings or ())), end="")


@data_app.command("fetch")
def data_fetch(name: str, data_dir: DataDirOption = None) -> None:
    """Get a data set into the cache, with its checksums verified."""
    from fedpdm.data import load_dataset

    dataset = load_dataset(name, data_dir=data_dir)
    print(f"{name}: {len(dataset.labels)} training and {len(dataset.test_labels)} test examples are ready.")


@data_app.command("info")
def data_info(name: str, data_dir: DataDirOption = None) -> None:
    """Describe a data set: examples, features, classes, where it comes from."""
    from fedpdm.data import describe

    print(describe(name, data_dir=data_dir))


@app.command()
def theory(
    config: ConfigArgument = "paper-mnist",
    settings: SetOption = None,
    target: Annotated[float | None, typer.Option(help="Value of P to reach: prints the rounds for it.")] = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what Theorem 3 promises for these settings: conditions, constants, bound."""
    from fedpdm import theory as theory_module
    from fedpdm.experiment import build_federation, build_simulation

    chosen = load_config(config, settings or ())
    simulation = build_simulation(chosen, build_federation(chosen, data_dir))
    result = theory_module.analyse(
        simulation.setup.problem,
        simulation.federation,
        rho=chosen.algorithm.rho,
        x0=simulation.state.server.x0,
        batch_size=chosen.local.batch_size,
        tolerance=chosen.local.tolerance,
    )
    lines = theory_module.explain(result, chosen.rounds.total, target)
    if as_json:
        print(json.dumps({name: value for name, value, _ in lines}, indent=2))
        return
    table = Table("quantity", "value", "meaning", title=f"Theorem 3 for {config}")
    for name, value, meaning in lines:
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value), meaning)
    Console().print(table)


def _report(path: Path, summary: dict[str, Any], as_json: bool, note: str | None = None) -> None:
    if as_json:
        print(json.dumps(summary | {"folder": str(path)}, indent=2))
        return
    if note:
        print(note)
    if summary["remark"]:
        print(summary["remark"])
    else:
        print(
            f"Test accuracy {summary['test_accuracy']:.4f} (last model), "
            f"{summary['test_accuracy_averaged']:.4f} (tail average); "
            f"{summary['nonzero_fraction']:.1%} of the weights are non-zero."
        )
    print(
        f"{summary['rounds']} rounds in {summary['seconds']:.1f} s (compiling: {summary['compile_seconds']:.1f} s); "
        f"{summary['uplink_bytes'] / 1e6:.1f} MB up, {summary['downlink_bytes'] / 1e6:.1f} MB down "
        f"(32 k T K: {summary['uplink_bits_paper'] / 8e6:.1f} up, {summary['downlink_bits_paper'] / 8e6:.1f} down)."
    )
    print(summary["guarantee"])
    if refused := summary.get("refused_participations"):
        print(f"{refused} participations were refused: the clients' budgets were used up.")
    print(f"Run folder: {path}")


if __name__ == "__main__":
    main()
