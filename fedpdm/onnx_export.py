"""A saved model as an ONNX graph: from the columns of a table, or the pixels of an image, to class and probabilities."""

__all__ = ["export_onnx"]

from typing import TYPE_CHECKING, Any

import numpy as np

from fedpdm.data.features import BIAS
from fedpdm.data.piecewise import column_count
from fedpdm.data.prepare import radius_of
from fedpdm.data.rows import adult_schema, pixel_scale
from fedpdm.data.schema import Category, Number, Schema
from fedpdm.errors import UserError
from fedpdm.saved import SavedModel
from fedpdm.version import __version__

if TYPE_CHECKING:
    import onnx

OPSETS = {"": 17, "ai.onnx.ml": 3}
SCALINGS = ("none", "bounded", "unit", "root", "centred", "centred-root")


def export_onnx(model: SavedModel) -> bytes:
    """The model as ONNX: schema, scaling and cut of the norm included.

    Inputs of a table: one [rows, 1] per column, by its name; numbers are float (NaN: missing), words are strings (empty:
    missing). Input of images: "pixels" [rows, pixels], float, with the original values. Outputs: "label" [rows], the
    predicted class's name, and "probabilities" [rows, classes].
    """
    try:
        import onnx
    except ImportError:
        raise UserError("ONNX needs the package onnx: pip install 'fedpdm[onnx]'.") from None
    data = model.config.data
    if data.features != "raw" or data.scaling not in SCALINGS:
        name = f"data.features={data.features}" if data.features != "raw" else f"data.scaling={data.scaling}"
        raise UserError(f"{name} has no ONNX form: use `fedpdm predict`, or train with data.features=raw and {_choices()}.")
    graph = _Graph()
    schema = adult_schema() if data.name == "adult" else model.schema
    blocks = _pixels(graph, model) if schema is None else _columns(graph, schema)
    features = _cut(graph, _scale(graph, model, blocks), radius_of(model.config))
    scores = graph.add("MatMul", features, graph.constant(model.weights.T))
    if model.config.problem.loss == "softmax":
        graph.add("Softmax", scores, out="probabilities", axis=1)
    else:
        each = graph.add("Sigmoid", scores)
        graph.add("Div", each, graph.add("ReduceSum", each, graph.constant([1], np.int64)), out="probabilities")
    place = graph.add("ArgMax", scores, axis=1, keepdims=0)
    places = list(range(len(model.class_names)))
    graph.add(
        "LabelEncoder", place, out="label", domain="ai.onnx.ml", keys_int64s=places, values_strings=list(model.class_names)
    )
    made = graph.model(len(model.class_names))
    onnx.checker.check_model(made)
    return made.SerializeToString()


def _choices() -> str:
    return f"data.scaling={' or '.join(SCALINGS)}"


class _Graph:
    """Nodes, constants and inputs, added one by one."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def input(self, name: str, width: int, words: bool = False) -> str:
        from onnx import TensorProto, helper

        kind = TensorProto.STRING if words else TensorProto.FLOAT
        self.inputs.append(helper.make_tensor_value_info(name, kind, ["rows", width]))
        return name

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def add(self, operation: str, *inputs: str, out: str | None = None, domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = out or f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, list(inputs), [name], domain=domain, **attributes))
        return name

    def ones(self) -> str:
        """A column of ones, as long as the first input."""
        from onnx import helper

        shape = self.add("Shape", self.inputs[0].name, start=0, end=1)
        full = self.add("Concat", shape, self.constant([1], np.int64), axis=0)
        return self.add("ConstantOfShape", full, value=helper.make_tensor("one", 1, [1], [1.0]))

    def model(self, classes: int) -> "onnx.ModelProto":
        from onnx import TensorProto, helper

        outputs = [
            helper.make_tensor_value_info("label", TensorProto.STRING, ["rows"]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", classes]),
        ]
        graph = helper.make_graph(self.nodes, "fedpdm", self.inputs, outputs, self.constants)
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        # the format's version of the opsets' time, which runtimes of many years read
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=8, producer_name="fedpdm", producer_version=__version__
        )


def _columns(graph: _Graph, schema: Schema) -> tuple[str, str | None]:
    """The encoded columns of a table, and its bias."""
    blocks = []
    for name, column in schema.columns.items():
        if isinstance(column, Number):
            value = graph.input(name, 1)
            missing = graph.add("IsNaN", value)
            scaled = graph.add(
                "Div", graph.add("Sub", value, graph.constant(column.low)), graph.constant(column.high - column.low)
            )
            clipped = graph.add("Clip", scaled, graph.constant(0), graph.constant(1))
            blocks.append(graph.add("Where", missing, graph.constant(0.5), clipped))
            if column.missing_column:
                blocks.append(graph.add("Cast", missing, to=1))
        elif isinstance(column, Category):
            word = graph.input(name, 1, words=True)
            hot = graph.add("OneHotEncoder", word, domain="ai.onnx.ml", cats_strings=column.levels, zeros=1)
            blocks.append(graph.add("Reshape", hot, graph.constant([-1, len(column.levels)], np.int64)))
    together = graph.add("Concat", *blocks, axis=1)
    return together, graph.ones() if schema.bias else None


def _pixels(graph: _Graph, model: SavedModel) -> tuple[str, str | None]:
    white = pixel_scale(model.config.data.name)
    pixels = graph.input("pixels", model.weights.shape[1] - 1)
    return graph.add("Div", pixels, graph.constant(white)), graph.ones()


def _scale(graph: _Graph, model: SavedModel, blocks: tuple[str, str | None]) -> str:
    """What `fedpdm.data.features.scale_features` does."""
    scaling, (columns, bias) = model.config.data.scaling, blocks
    if scaling in ("none", "bounded"):
        together = graph.add("Concat", columns, bias, axis=1) if bias else columns
        if scaling == "none":
            return together
        return graph.add("Div", together, graph.constant(column_count(model.feature_names) ** 0.5))
    if scaling.endswith("root"):
        columns = graph.add("Mul", graph.add("Sign", columns), graph.add("Sqrt", graph.add("Abs", columns)))
    if scaling.startswith("centred"):
        columns = graph.add("Sub", columns, graph.add("ReduceMean", columns, axes=[1]))
    columns = graph.add("Div", columns, graph.add("Max", _norms(graph, columns), graph.constant(1e-12)))
    return graph.add("Concat", columns, graph.add("Mul", bias, graph.constant(BIAS)), axis=1) if bias else columns


def _norms(graph: _Graph, rows: str) -> str:
    return graph.add("ReduceL2", rows, axes=[1])


def _cut(graph: _Graph, rows: str, radius: float | None) -> str:
    """What `fedpdm.data.clip_norms` does."""
    if radius is None:
        return rows
    norms, bound = _norms(graph, rows), graph.constant(radius)
    factor = graph.add("Div", graph.constant(radius * (1 - 1e-6)), graph.add("Max", norms, bound))
    return graph.add("Mul", rows, graph.add("Where", graph.add("Greater", norms, bound), factor, graph.constant(1)))
