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
        "algorithm.newton=true": a.newton,
        'local.solver="newton"': local.solver == "newton",
        f"rounds.tolerance={r.tolerance:g}": r.tolerance > 0,
    }
    for what in (name for name, yes in chosen.items() if yes):
        if config.privacy.mechanism != "none":
            raise ValueError(
                f'{what} depends on the data without a bound: it is for privacy.mechanism="none" (tables '
                'with privacy have the preset "private-table")'
            )
    convex = PENALTIES.row(config.problem.penalty).convex
    whole = c.uplink == 1 and c.downlink == 1 and c.values == "float32"
    everybody = a.server_rule == "dual-memory" and r.participants in (0, config.data.clients)
    if a.name != "fedpdm" and (a.adaptive or a.newton or a.metric == "moments"):
        raise ValueError(
            f'the preset "table" finds the optimum in ways that only fedpdm has, and algorithm.name={a.name}: start from the '
            'preset "plain" (docs/compare.md), or set algorithm.adaptive=false, algorithm.newton=false and '
            'algorithm.metric="plain"'
        )
    for key in (key for key, yes in {"adaptive": a.adaptive, "newton": a.newton}.items() if yes):
        if not everybody:
            raise ValueError(
                f'algorithm.{key}=true needs algorithm.server_rule="dual-memory", not "{a.server_rule}", and all clients in '
                f"every round, but rounds.participants={r.participants}: set it to 0, or set algorithm.{key}=false"
            )
        if not whole:
            raise ValueError(f"algorithm.{key}=true needs whole messages: remove the settings in [compression]")
    if a.metric == "moments" and (local.solver != "newton" or not convex):
        more = " and algorithm.newton=false" if a.newton and not convex else ""
        raise ValueError(
            'algorithm.metric="moments" needs local.solver="newton" and a convex penalty, not '
            f'"{config.problem.penalty}": set algorithm.metric="plain"{more}'
        )
    if a.newton and (not convex or config.problem.beta):
        raise ValueError(
            f'algorithm.newton=true needs a convex problem, not problem.penalty="{config.problem.penalty}" with '
            f"problem.beta={config.problem.beta:g}: set algorithm.newton=false"
        )
    if local.solver == "newton" and (local.batch_size or not local.tolerance or config.problem.penalty_by != "prox"):
        raise ValueError(
            'local.solver="newton" needs local.batch_size=0, a local.tolerance such as 1e-10, and problem.penalty_by="prox"'
        )
    if r.tolerance and not config.metrics.diagnose_every:
        raise ValueError(f"rounds.tolerance={r.tolerance:g} needs metrics.diagnose_every above 0, where P is measured")
