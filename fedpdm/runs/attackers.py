"""What the summary, the terminal and the report say about simulated attackers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpdm.config import Config
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.hostile.check import STRIKES
from fedpdm.hostile.comparing import left_out

__all__ = ["attack_summary", "attack_words"]


def attack_summary(simulation: Simulation) -> dict[str, Any]:
    """Who attacked, and what the server refused; for the summary of a run.

    Parameters
    ----------
    simulation : Simulation
        At its end.

    Returns
    -------
    dict
        Empty without attackers.
    """
    attack, strikes = simulation.schedule.attack, simulation.state.strikes
    if attack is None or strikes is None:
        return {}
    refused, evidence = np.asarray(strikes), simulation.state.evidence
    if evidence is not None:
        out = np.asarray(left_out(evidence))
    else:
        out = np.zeros(0, bool) if simulation.setup.privacy.sums else refused >= STRIKES
    return {
        "attackers": list(attack.clients),
        "messages_refused": int(refused.sum()),
        "left_out": np.flatnonzero(out).tolist(),
        "unchecked": attack.unchecked,
    }


def attack_words(config: Config, summary: Mapping[str, Any]) -> str:
    """Say in one sentence who attacked, and what the server refused.

    Parameters
    ----------
    config : Config
        The settings of a run with attackers.
    summary : mapping
        Its summary.

    Returns
    -------
    str
        The sentence.
    """
    who = f"{config.attack.clients} of the clients were simulated attackers ({config.attack.kind})"
    if why := summary.get("unchecked"):
        return f"{who}; messages were not checked: {why}."
    refused, out = summary.get("messages_refused", 0), len(summary.get("left_out", ()))
    then = f", and did not ask {out} of the clients again" if out else ""
    what = "sums" if config.privacy.trust == "cohorts" else "messages"
    return f"{who}; the server refused {refused} {what}{then}."
