"""The command `fedpdm theory`."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedpdm.cli.options import ConfigArgument, DataDirOption, JsonOption, SetOption

__all__ = ["theory_command"]


def theory_command(
    config: ConfigArgument = "paper-mnist",
    settings: SetOption = None,
    target: Annotated[float | None, typer.Option(help="Value of P to reach: prints the rounds for it.")] = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the promise of Theorem 3 for these settings: conditions, constants, bound.

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
