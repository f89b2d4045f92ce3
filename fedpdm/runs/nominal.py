"""The figures of a run under the paper's mechanism, for which nothing is proven."""

from typing import Any

import numpy as np

from fedpdm.config import Config
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.privacy.sampling import sampled_epsilon

__all__ = ["nominal_summary", "paper_face_value"]


def nominal_summary(config: Config, simulation: Simulation) -> dict[str, Any]:
    """Return the nominal figure, and the worth of its noise if Theorem 1's sensitivity is granted.

    Parameters
    ----------
    config, simulation
        The settings, and the simulation at its end.

    Returns
    -------
    dict
        Entries of the summary; empty for other mechanisms.
    """
    p = config.privacy
    if p.mechanism != "paper":
        return {}
    face_value = paper_face_value(simulation, p.delta)
    un_noised = config.compression.kind == "topk" and config.compression.uplink < 1
    indices = "the indices that are sent depend on values without noise, " if un_noised else ""
    return {
        "delta": p.delta,
        "relation": "add-remove",
        "epsilon_nominal": p.epsilon,
        "epsilon_face_value": face_value,
        "guarantee": (
            f"Nothing is guaranteed: epsilon = {p.epsilon:g} is nominal (Theorems 1 and 2 of the paper, add-remove). With "
            f"Theorem 1's sensitivity and the sampling of data granted, the same noise composes to epsilon = {face_value:.4g} "
            f"at delta = {p.delta:g} (PLD); but that sensitivity does not hold: the dual is un-noised private state, the "
            f"number of steps depends on the data, {indices}and participations are counted in expectation "
            "(docs/privacy/published-mechanism.md, `fedpdm privacy audit`)."
        ),
    }


def paper_face_value(simulation: Simulation, delta: float) -> float:
    """Compose the noise of the client that spent most by PLD, with Theorem 1's sensitivity and sampling granted.

    The granted sampling: a round sees a share q = Q b/|D_i| of the data, as if drawn by Poisson sampling.

    Parameters
    ----------
    simulation : Simulation
        The simulation at its end.
    delta : float
        Of the figure.

    Returns
    -------
    float
        Epsilon.
    """
    spent, times = np.asarray(simulation.state.spent), simulation.taken_part()
    worst = int(spent.argmax())
    noise_multiplier = float(np.sqrt(times[worst] / spent[worst]))
    local = simulation.setup.local
    share = local.steps * local.batch_size / int(simulation.federation.sizes[worst])
    return sampled_epsilon(noise_multiplier, share, int(times[worst]), delta, "add-remove")
