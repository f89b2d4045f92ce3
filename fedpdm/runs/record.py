"""A finished run in a few numbers and a sentence (see docs/run-folder.md)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.compression.indices import entropy_bits
from fedpdm.compression.sparsify import coordinate_count
from fedpdm.config import Config
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.privacy.accounting import sampled_epsilon
from fedpdm.runs.folder import RunFolder

__all__ = ["summarise", "paper_face_value"]


def summarise(config: Config, simulation: Simulation, folder: RunFolder, seconds: float) -> dict[str, Any]:
    """The run in a few numbers (see docs/run-folder.md)."""
    last = {key: value for row in folder.rows() for key, value in row.items()}
    summary = {
        "test_accuracy": round(simulation.test_accuracy(simulation.model), 7),
        "test_accuracy_averaged": round(simulation.test_accuracy(simulation.averaged_model), 7),
        "objective": last.get("objective"),
        "nonzero_fraction": last["nonzero_fraction"],
        "stationarity": last.get("stationarity"),
        "rounds": simulation.round,
        "converged": simulation.converged if config.rounds.tolerance else None,
        "seconds": round(seconds, 3),
        "compile_seconds": round(simulation.compile_seconds, 3),
        **traffic_summary(config, simulation),
        "mechanism": config.privacy.mechanism,
        "epsilon": None,
        "delta": None,
        "relation": None,
        "guarantee": "No privacy mechanism was on: this run guarantees nothing about the examples.",
    }
    if config.privacy.mechanism == "paper":
        summary |= paper_summary(config, simulation)
    summary["remark"] = remark(config, summary, simulation.federation.clients)
    return summary


def traffic_summary(config: Config, simulation: Simulation) -> dict[str, Any]:
    """Bytes as encoded, bits by the paper's formula 32 k T K, and the indices against log2 C(d, k)."""
    c, size, traffic = config.compression, simulation.model.size, simulation.traffic()
    summary: dict[str, Any] = {"uplink_bytes": traffic["uplink"], "downlink_bytes": traffic["downlink"]}
    summary |= simulation.paper_bits(config.rounds.total)
    if traffic["index"]:
        vectors = len(jax.tree.leaves(simulation.setup.algorithm.gain(jnp.float32(1.0))))
        least = entropy_bits(size, coordinate_count(c.uplink, size)) * vectors * int(simulation.taken_part().sum())
        summary["index_bits_over_entropy"] = round(8 * traffic["index"] / least, 4)
    return summary


def paper_summary(config: Config, simulation: Simulation) -> dict[str, Any]:
    """Nothing is proven: the nominal figure, and what its noise is worth if Theorem 1's sensitivity is granted."""
    p = config.privacy
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
    """PLD composition of the noise of the client that spent most, granted Theorem 1's sensitivity and its sampling.

    The granted sampling: a round sees a share q = Q b/|D_i| of the data, as if drawn by Poisson sampling.
    """
    spent, times = np.asarray(simulation.state.spent), simulation.taken_part()
    worst = int(spent.argmax())
    noise_multiplier = float(np.sqrt(times[worst] / spent[worst]))
    local = simulation.setup.local
    share = local.steps * local.batch_size / int(simulation.federation.sizes[worst])
    return sampled_epsilon(noise_multiplier, share, int(times[worst]), delta, "add-remove")


def remark(config: Config, summary: dict[str, Any], clients: int) -> str | None:
    """Words for a result that the numbers alone would misrepresent."""
    if summary["nonzero_fraction"] > 0:
        return None
    scale = clients if config.problem.penalty_scale == "sum" else 1
    advice = "lower problem.gamma"
    if scale == 1:
        advice += ', or set problem.penalty_scale="sum" if gamma is meant for the sum over clients'
    return (
        f"The model is zero: the penalty of strength {config.problem.gamma / scale:g} on the mean objective removed every "
        f"coordinate. It has learnt nothing and always predicts the first class: {advice}."
    )
