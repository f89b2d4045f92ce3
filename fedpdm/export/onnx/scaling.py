"""The scalings of `fedpdm.data.scaling` as nodes of an ONNX graph, which `fedpdm.choices.SCALINGS` names.

Each function takes a graph, the node of the columns and their names, and returns the last node that it added.
"""

from collections.abc import Sequence

from fedpdm.data.feature_map import without_bias
from fedpdm.data.piecewise import column_count
from fedpdm.data.scaling import blur_matrix
from fedpdm.export.onnx.graph import Graph

__all__: list[str] = []


def bounded(graph: Graph, columns: str, names: Sequence[str]) -> str:
    """Add `fedpdm.data.scaling.bounded`."""
    return graph.add("Div", columns, graph.constant(column_count(names) ** 0.5))


def unit(graph: Graph, columns: str, names: Sequence[str]) -> str:
    """Add `fedpdm.data.scaling.unit`: no node."""
    return columns


def root(graph: Graph, columns: str, names: Sequence[str]) -> str:
    """Add `fedpdm.data.scaling.root`."""
    return graph.add("Mul", graph.add("Sign", columns), graph.add("Sqrt", graph.add("Abs", columns)))


def centred(graph: Graph, columns: str, names: Sequence[str]) -> str:
    """Add `fedpdm.data.scaling.centred`."""
    return graph.add("Sub", columns, graph.add("ReduceMean", columns, axes=[1]))


def centred_root(graph: Graph, columns: str, names: Sequence[str]) -> str:
    """Add `fedpdm.data.scaling.centred_root`."""
    return centred(graph, root(graph, columns, names), names)


def blurred(graph: Graph, columns: str, names: Sequence[str]) -> str:
    """Add `fedpdm.data.scaling.blurred`."""
    smooth = graph.constant(blur_matrix(len(without_bias(names))))
    return centred(graph, graph.add("MatMul", root(graph, columns, names), smooth), names)
