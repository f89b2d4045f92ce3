"""A saved model as an ONNX graph: from the columns of a table, or the pixels of an image, to class and probabilities."""

__all__ = ["export_onnx"]

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpdm.choices import SCALINGS
from fedpdm.data.features import map_name, options_of, without_bias
from fedpdm.data.prepare import radius_of
from fedpdm.data.rows import adult_schema, input_names, pixel_scale
from fedpdm.data.scaling import BIAS
from fedpdm.data.schema import Category, Number, Schema
from fedpdm.errors import ConfigError, require_extra
from fedpdm.export.onnx.graph import Graph
from fedpdm.export.onnx.maps import map_features
from fedpdm.runs.saved import SavedModel

if TYPE_CHECKING:
    import onnx


def export_onnx(model: SavedModel) -> bytes:
    """Export a model as ONNX, with schema, scaling, public feature map and clipping of the norm.

    A table has one input [rows, 1] per column, named like it: numbers are float (NaN: missing), words are strings (empty:
    missing). Images have the input "pixels" [rows, pixels], float, with the original values. The outputs are "label" [rows],
    the name of the predicted class, and "probabilities" [rows, classes]; of a number it is "predicted" [rows, 1].

    Parameters
    ----------
    model : SavedModel
        The model of a finished run.

    Returns
    -------
    bytes
        The ONNX file.
    """
    require_extra("onnx", "onnx", "An ONNX file")
    model.require_columns()
    data = model.config.data
    graph = Graph()
    schema = model.schema or (adult_schema() if data.name == "adult" else None)
    names = input_names(data.name, model.schema)
    columns, bias = _pixels(graph, model, names) if schema is None else _columns(graph, schema)
    columns, bias = _scale(graph, data.scaling, names, columns, bias)
    if data.features != "raw":
        kind = map_name(data.features, names)
        columns = map_features(graph, kind, columns, without_bias(names), options_of(data))
        bias = graph.add("Mul", graph.ones(), graph.constant(BIAS))
    features = graph.add("Concat", columns, bias, axis=1) if bias else columns
    features = _cut(graph, features, radius_of(model.config))
    scores = graph.add("MatMul", features, graph.constant(model.weights.T))
    if model.target and model.target.event:
        raise ConfigError("A time to an event has no ONNX form yet: use `fedpdm predict`, or --format csv.")
    if model.target:
        return _finished(_number(graph, model, scores))
    model.link().nodes(graph, scores, "probabilities")
    place = graph.add("ArgMax", scores, axis=1, keepdims=0)
    places = list(range(len(model.class_names)))
    graph.add(
        "LabelEncoder", place, out="label", domain="ai.onnx.ml", keys_int64s=places, values_strings=list(model.class_names)
    )
    return _finished(graph.model({"label": None, "probabilities": len(model.class_names)}))


def _number(graph: Graph, model: SavedModel, scores: str) -> "onnx.ModelProto":
    """The prediction of a number, in the label's units."""
    assert model.target is not None
    model.link().nodes(graph, scores, "scaled")
    wide = graph.add("Mul", "scaled", graph.constant(model.target.high - model.target.low))
    graph.add("Add", wide, graph.constant(model.target.low), out="predicted")
    return graph.model({"predicted": 1})


def _finished(made: "onnx.ModelProto") -> bytes:
    import onnx

    onnx.checker.check_model(made)
    return made.SerializeToString()


def _columns(graph: Graph, schema: Schema) -> tuple[str, str | None]:
    """Add the encoded columns of a table, and its bias."""
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


def _pixels(graph: Graph, model: SavedModel, names: Sequence[str]) -> tuple[str, str | None]:
    white = pixel_scale(model.config.data.name)
    pixels = graph.input("pixels", len(without_bias(names)))
    return graph.add("Div", pixels, graph.constant(white)), graph.ones()


def _scale(graph: Graph, scaling: str, names: Sequence[str], columns: str, bias: str | None) -> tuple[str, str | None]:
    """Do the work of `fedpdm.data.scaling.scale_features` on the columns and on the bias."""
    if scaling == "none":
        return columns, bias
    row = SCALINGS.row(scaling)
    nodes = row.onnx_nodes()
    if not row.unit:
        return nodes(graph, columns, names), nodes(graph, bias, names) if bias else None
    unit = graph.unit(nodes(graph, columns, names))
    return unit, graph.add("Mul", bias, graph.constant(BIAS)) if bias else None


def _cut(graph: Graph, rows: str, radius: float | None) -> str:
    """Do the work of `fedpdm.data.clip_norms`."""
    if radius is None:
        return rows
    norms, bound = graph.norms(rows), graph.constant(radius)
    factor = graph.add("Div", graph.constant(radius * (1 - 1e-6)), graph.add("Max", norms, bound))
    return graph.add("Mul", rows, graph.add("Where", graph.add("Greater", norms, bound), factor, graph.constant(1)))
