"""Link functions: from the scores of a model to what it predicts. A loss owns its link (`fedpdm.problem.Loss`)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Link", "softmax_shares", "own_shares", "identity", "exponential"]


class Link(NamedTuple):
    """A link function.

    Attributes
    ----------
    name : str
        Its name in messages.
    apply : callable
        Scores [rows, m] -> predictions [rows, m], in NumPy: probabilities that add up to 1 for classes, else numbers.
    nodes : callable
        `(graph, scores, out) -> None` adds the same function to a `fedpdm.export.onnx.graph.Graph`; its last node is named
        `out`.
    """

    name: str
    apply: Callable[[np.ndarray], np.ndarray]
    nodes: Callable[[Any, str, str], object]


def _shares(logarithms: np.ndarray) -> np.ndarray:
    raised = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def _own_nodes(graph: Any, scores: str, out: str) -> None:
    each = graph.add("Sigmoid", scores)
    graph.add("Div", each, graph.sum(each, 1), out=out)


softmax_shares = Link("softmax", _shares, lambda graph, scores, out: graph.add("Softmax", scores, out=out, axis=1))

# Every class has its own probability, as in the paper's loss; they are divided by their sum.
own_shares = Link("own shares", lambda scores: _shares(-np.logaddexp(0, -scores)), _own_nodes)

identity = Link("identity", lambda scores: scores, lambda graph, scores, out: graph.add("Identity", scores, out=out))

exponential = Link("log", np.exp, lambda graph, scores, out: graph.add("Exp", scores, out=out))
