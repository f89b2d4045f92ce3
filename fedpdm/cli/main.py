"""The command `fedpdm`."""

import json
import sys
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.table import Table

from fedpdm.cache import remember_compilations
from fedpdm.cli import run, studies, tables
from fedpdm.cli.features import features_app
from fedpdm.cli.flower import flower_app
from fedpdm.cli.options import ConfigArgument, DataDirOption, JsonOption, SetOption
from fedpdm.cli.privacy import privacy_app
from fedpdm.errors import UserError
from fedpdm.version import __version__

__all__ = ["app", "main"]

typer.core.HAS_RICH = False  # plain help: boxes help nobody in a pipe, in a log or on a narrow screen
app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Federated primal-dual learning of sparse models, with proven privacy. `fedpdm COMMAND --help` has examples.",
)
config_app = typer.Typer(no_args_is_help=True, help="Look at settings.")
data_app = typer.Typer(no_args_is_help=True, help="Get and describe data sets.")
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
app.add_typer(features_app, name="features")
app.add_typer(privacy_app, name="privacy")
app.add_typer(flower_app, name="flower")
run.register(app)
tables.register(app, data_app)
studies.register(app)

# Some versions of typer bring their own click, so its errors are reached through typer.
UsageError: Any = typer.BadParameter.__base__
HINT = """\
New here? This takes half a minute at most and downloads nothing:
  fedpdm run plain --set data.name=digits --set data.clients=20 --set rounds.participants=5
It ends with the path of a report to open in a browser. `fedpdm run demo` trains a private model of MNIST.
A table of your own: fedpdm run --data people.csv --label income --client-column hospital
"""


def main() -> None:
    """Run the command; a user's mistake ends in one line and exit code 2 (docs/command-line.md has all codes)."""
    remember_compilations()
    try:
        sys.exit(app(prog_name="fedpdm", standalone_mode=False))
    except UserError as error:
        print(f"fedpdm: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except UsageError as error:
        message = error.format_message()  # that of a group without a command is its whole help
        more = f" See `{error.ctx.command_path} --help`." if error.ctx else ""
        print(message if "\n" in message else f"fedpdm: {message.rstrip('.')}.{more}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        print("\nfedpdm: interrupted.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of the pipe has seen enough
        sys.stderr.close()
        sys.exit(0)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedpdm {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(HINT + "\n" + context.get_help())


@app.command()
def presets() -> None:
    """List the presets: settings to start from.

    \b
    Example:
      fedpdm presets
    """
    from fedpdm.config import load_config, preset_names

    for name in preset_names():
        c = load_config(name)
        print(
            f"{name:12s} {c.data.name}, {c.data.clients} clients, {c.problem.loss} loss, "
            f"{c.algorithm.name} with rho={c.algorithm.rho:g}, {c.rounds.total} rounds"
        )


@config_app.command("show")
def config_show(config: ConfigArgument, settings: SetOption = None) -> None:
    """Print the full settings as TOML, with comments, to start a file from.

    \b
    Example:
      fedpdm config show demo > mine.toml
    """
    from fedpdm.config import load_config, to_toml

    print(to_toml(load_config(config, settings or ())), end="")


@data_app.command("fetch")
def data_fetch(name: str, data_dir: DataDirOption = None) -> None:
    """Get a data set into the cache, with its checksums verified.

    \b
    Example:
      fedpdm data fetch mnist
    """
    from fedpdm.data import load_dataset

    dataset = load_dataset(name, data_dir=data_dir)
    print(f"{name}: {len(dataset.labels)} training and {len(dataset.test_labels)} test examples are ready.")


@data_app.command("info")
def data_info(name: str, data_dir: DataDirOption = None) -> None:
    """Describe a data set: examples, features, classes, where it comes from.

    \b
    Example:
      fedpdm data info digits
    """
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
    """Say what Theorem 3 promises for these settings: conditions, constants, bound.

    \b
    Example:
      fedpdm theory paper-mnist --target 0.1
    """
    from fedpdm import theory as theory_module
    from fedpdm.config import load_config
    from fedpdm.data.prepare import build_federation
    from fedpdm.engines.simulation.build import build_simulation

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
    rows = [(name, f"{value:.4g}" if isinstance(value, float) else str(value), meaning) for name, value, meaning in lines]
    if not sys.stdout.isatty():
        for name, value, meaning in rows:
            print(f"{name:24}{value:>12}  {meaning}")
        return
    table = Table("quantity", "value", "meaning", title=f"Theorem 3 for {config}")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
