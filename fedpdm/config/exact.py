"""Conditions of settings that reach the optimum: they use the data in ways that no privacy bound covers."""

from typing import TYPE_CHECKING

from fedpdm.choices import PENALTIES

if TYPE_CHECKING:
    from fedpdm.config.sections import Config

__all__ = ["check_exact"]


def check_exact(config: "Config") -> None:
    """Refuse settings that do not fit a solver, a stop or a rho that depends on the data.

    Parameters
    ----------
    config : Config
        The settings.

    Raises
    ------
    ValueError
        With the settings that would fit.
    """
    a, local, r, c = config.algorithm, config.local, config.rounds, config.compression
    chosen = {
        "algorithm.adaptive=true": a.adaptive,
        'algorithm.metric="moments"': a.metric == "moments",
        'local.solver="newton"': local.solver == "newton",
        f"rounds.tolerance={r.tolerance:g}": r.tolerance > 0,
    }
    for what in (name for name, yes in chosen.items() if yes):
        if config.privacy.mechanism != "none":
            raise ValueError(
                f'{what} depends on the data without a bound: it is for privacy.mechanism="none" (tables '
                'with privacy have the preset "private-table")'
            )
    if a.adaptive and (a.name != "fedpdm" or a.server_rule != "dual-memory" or r.participants not in (0, config.data.clients)):
        raise ValueError(
            'algorithm.adaptive=true needs algorithm.name="fedpdm", algorithm.server_rule="dual-memory" and all clients in '
            f"every round, but rounds.participants={r.participants}: set it to 0, or set algorithm.adaptive=false"
        )
    if a.adaptive and (c.uplink < 1 or c.downlink < 1 or c.values != "float32"):
        raise ValueError("algorithm.adaptive=true needs whole messages: remove the settings in [compression]")
    convex = PENALTIES.row(config.problem.penalty).convex
    if a.metric == "moments" and (a.name != "fedpdm" or local.solver != "newton" or not convex):
        raise ValueError(
            'algorithm.metric="moments" needs algorithm.name="fedpdm", local.solver="newton" and a convex penalty, not '
            f'"{config.problem.penalty}": set algorithm.metric="plain"'
        )
    if local.solver == "newton" and (local.batch_size or not local.tolerance or config.problem.penalty_by != "prox"):
        raise ValueError(
            'local.solver="newton" needs local.batch_size=0, a local.tolerance such as 1e-10, and problem.penalty_by="prox"'
        )
    if r.tolerance and not config.metrics.diagnose_every:
        raise ValueError(f"rounds.tolerance={r.tolerance:g} needs metrics.diagnose_every above 0, where P is measured")
