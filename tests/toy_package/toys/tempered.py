"""Cross-entropy of the softmax of the scores divided by a temperature."""

import numpy as np
from jax import Array

from fedpdm.problem import Link, Loss, softmax
from fedpdm.problem.prediction import softmax_shares


def tempered(clip: float = 1.0, *, temperature: float) -> Loss:
    plain = softmax(clip)
    slopes = plain.slopes
    assert slopes is not None

    def values(model: Array, features: Array, labels: Array) -> Array:
        return plain.values(model / temperature, features, labels)

    def gradient(model: Array, features: Array, labels: Array, weights: Array) -> Array:
        return plain.gradient(model / temperature, features, labels, weights) / temperature

    def shares(scores: np.ndarray) -> np.ndarray:
        return softmax_shares.apply(scores / temperature)

    def nodes(graph, scores: str, out: str) -> None:
        softmax_shares.nodes(graph, graph.add("Div", scores, graph.constant(temperature)), out)

    return Loss(
        "tempered",
        values,
        gradient,
        plain.scores,
        gradient_bound=lambda radius: plain.gradient_bound(radius) / temperature,
        smoothness=lambda radius: plain.smoothness(radius) / temperature**2,
        slopes=lambda scores, labels, weights: slopes(scores / temperature, labels, weights) / temperature,
        link=Link("tempered softmax", shares, nodes),
    )
