"""Options and arguments that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from fedpdm.cli.completion import complete_config, complete_setting

__all__ = ["ConfigArgument", "SetOption", "DataDirOption", "JsonOption"]

ConfigArgument = Annotated[str, typer.Argument(help="A TOML file, or the name of a preset.", autocompletion=complete_config)]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated.", autocompletion=complete_setting),
]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder that holds the data files (or set FEDPDM_DATA).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
