"""The commands `fedpdm presets` and `fedpdm config show`."""

import typer

from fedpdm.cli.options import ConfigArgument, SetOption

__all__ = ["config_app", "presets"]

config_app = typer.Typer(no_args_is_help=True, help="Look at settings.")


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
