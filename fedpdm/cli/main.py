"""The command `fedpdm`."""

import errno
import sqlite3
import sys
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from fedpdm.cache import remember_compilations
from fedpdm.choices import COMMANDS
from fedpdm.choices.registry import at_fault
from fedpdm.cli.interrupt import heed_interrupts, interrupted
from fedpdm.cli.terminal import outlive_the_terminal
from fedpdm.errors import UserError
from fedpdm.version import __version__

__all__ = ["app", "main"]

typer.core.HAS_RICH = False  # plain help: boxes are hard to read in a pipe, in a log or on a narrow screen


class _Commands(typer.core.TyperGroup):
    """The commands of the table `fedpdm.choices.COMMANDS`; each is imported at its first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = _made(cmd_name)
        return self.commands[cmd_name]


def _made(name: str) -> Any:
    made = COMMANDS[name].factory()
    if not isinstance(made, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(name)(made)
        return typer.main.get_command(alone)
    group = typer.main.get_group(made)
    group.name = name
    return group


app = typer.Typer(
    cls=_Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Federated primal-dual learning of sparse models, with proven privacy. `fedpdm COMMAND --help` has examples.",
)

# Some versions of typer bring their own click, so its errors are reached through typer.
UsageError: Any = typer.BadParameter.__base__
HINT = """\
New here? This takes half a minute at most and downloads nothing:
  fedpdm run plain --set data.name=digits --set data.clients=20 --set rounds.participants=5
It ends with the path of a report to open in a browser. `fedpdm run demo` trains a private model of MNIST.
Your own table: fedpdm run --data people.csv --label income --client-column hospital
"""


def main() -> None:
    """Run the command; a user's mistake ends in one line and exit code 2 (docs/command-line.md lists all codes)."""
    remember_compilations()
    heed_interrupts()
    outlive_the_terminal()
    try:
        sys.exit(app(prog_name="fedpdm", standalone_mode=False))
    except UserError as error:
        print(f"fedpdm: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except UsageError as error:
        message = error.format_message()  # that of a group without a command is its whole help
        more = f" {_usage(error.ctx)} See `{error.ctx.command_path} --help`." if error.ctx else ""
        end = "" if message.endswith((".", "?")) else "."
        print(message if "\n" in message else f"fedpdm: {message}{end}{more}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        interrupted("interrupted.")
    except BrokenPipeError:  # the reader closed the pipe
        sys.stderr.close()
        sys.exit(0)
    except (OSError, sqlite3.OperationalError) as error:  # no permission, a full disk: nothing that a traceback explains
        print(f"fedpdm: {_of_the_machine(error)}", file=sys.stderr)
        sys.exit(UserError.exit_code)
    except Exception as error:
        if (words := at_fault(error)) is None:
            raise
        print(f"fedpdm: {words}. A run keeps its last checkpoint; repair or uninstall the package.", file=sys.stderr)
        sys.exit(UserError.exit_code)


def _usage(context: Any) -> str:
    """How the command is written, such as "Usage: fedpdm predict [OPTIONS] RUN ROWS."."""
    return f"{' '.join(context.command.get_usage(context).split())}."


def _of_the_machine(error: OSError | sqlite3.OperationalError) -> str:
    """The file, what is wrong with it, and the way out, in one line."""
    if not isinstance(error, OSError):
        return f"a database cannot be used: {' '.join(str(error).split())}. Free some space, or give the right to write it."
    place = f"{error.filename}: " if error.filename else ""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    more = "Free some space and run again." if full else "Give the right to use it, or name another place."
    return f"{place}{error.strerror or error}. {more}"


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


if __name__ == "__main__":
    main()
