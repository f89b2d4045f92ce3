"""The command `fedpdm theory`."""

import json
import math
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedpdm.cli.options import ConfigArgument, DataDirOption, JsonOption, SetOption
from fedpdm.errors import ConfigError

if TYPE_CHECKING:
    from fedpdm.config import Config

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
    from fedpdm.engines.simulation.build import build_simulation
    from fedpdm.rounds import message_noise
    from fedpdm.setup.directions import federate

    chosen = load_config(config, settings or ())
    _refuse_other_methods(chosen)
    simulation = build_simulation(chosen, federate(chosen, data_dir))
    setup, sizes = simulation.setup, simulation.federation.slots
    rounds = (0, chosen.rounds.total - 1)
    noise = max(message_noise(setup, float(min(sizes)), t) for t in rounds)
    result = theory_module.analyse(
        simulation.setup.problem,
        simulation.federation,
        rho=chosen.algorithm.rho,
        x0=simulation.state.server.x0,
        batch_size=chosen.local.batch_size,
        tolerance=chosen.local.tolerance,
        noise=noise**2,
    )
    lines = theory_module.explain(result, chosen.rounds.total, target)
    if as_json:
        print(json.dumps({name: value if math.isfinite(value) else None for name, value, _ in lines}, indent=2))
        return
    print("\n".join(theory_module.answer(result, chosen.rounds.total)) + "\n")
    rows = [(name, _shown(value), meaning) for name, value, meaning in lines]
    if not sys.stdout.isatty():
        width = max(len(name) for name, _, _ in rows)
        for name, value, meaning in rows:
            print(f"{name:{width}}{value:>12}  {meaning}")
        return
    table = Table("quantity", "value", "meaning", title=f"Theorem 3 for {config}")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _shown(value: float | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if math.isfinite(value) else "none"


def _refuse_other_methods(chosen: "Config") -> None:
    """Theorem 3 is about FedPDM with noise in the messages: say so instead of printing numbers about something else."""
    if chosen.algorithm.name != "fedpdm":
        raise ConfigError(
            f"Theorem 3 is about FedPDM, not about algorithm.name={chosen.algorithm.name!r}: set algorithm.name=fedpdm."
        )
    if chosen.privacy.trust != "local" or chosen.privacy.mode == "every-step":
        raise ConfigError(
            f"Theorem 3 is about noise that each client adds to its message, not about privacy.trust={chosen.privacy.trust!r} "
            f"with privacy.mode={chosen.privacy.mode!r}: set privacy.trust=local and another mode."
        )
