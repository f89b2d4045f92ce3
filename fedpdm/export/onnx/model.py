"""A saved model as an ONNX graph: from the columns of a table, or the pixels of an image, to class and probabilities."""

__all__ = ["export_onnx"]

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpdm.choices import FEATURE_MAPS, SCALINGS
from fedpdm.data.features import map_name, options_of, without_bias
from fedpdm.data.prepare import radius_of
from fedpdm.data.rows import adult_schema, input_names, pixel_scale
from fedpdm.data.scaling import BIAS
from fedpdm.data.schema import Category, Image, Number, Schema
from fedpdm.errors import require_extra
from fedpdm.export.onnx.graph import Graph
from fedpdm.export.onnx.maps import map_features
from fedpdm.runs.saved import SavedModel

if TYPE_CHECKING:
    import onnx


def export_onnx(model: SavedModel) -> bytes:
    """Export a model as ONNX, with schema, scaling, public feature map and clipping of the norm.

    A table has one input [rows, 1] per column, named like it: numbers are float (NaN: missing), words are strings (empty:
    missing). A column of images has the input [rows, height, width, channels], or [rows, height, width] if it is grey; known
    sets of images have the input "pixels" [rows, pixels]. Both are float, with the original values (0 to 255 of a file, resized
    to the schema's shape). After hashed words or an encoder the input is "mapped" [rows, features], the output of the map that
    the file's metadata name. The outputs are "label" [rows], the name of the predicted class, and "probabilities" [rows,
    classes]; of a number or a time it is "predicted" [rows, 1].

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
    kind = map_name(data.features, names)
    named = FEATURE_MAPS.row(kind).named
    if named:
        columns, bias = graph.input("mapped", model.weights.shape[1] - 1), None
    else:
        columns, bias = _pixels(graph, model, names) if schema is None else _columns(graph, schema)
        columns, bias = _scale(graph, data.scaling, names, columns, bias)
    if data.features != "raw":
        if not named:
            columns = map_features(graph, kind, columns, without_bias(names), options_of(data))
        else:
            columns = graph.unit(columns)
            graph.about = {"map": kind, **{key: str(value) for key, value in FEATURE_MAPS.row(kind).arguments(data).items()}}
        bias = graph.add("Mul", graph.ones(), graph.constant(BIAS))
    features = graph.add("Concat", columns, bias, axis=1) if bias else columns
    features = _cut(graph, features, radius_of(model.config))
    scores = graph.add("MatMul", features, graph.constant(model.weights.T))
    if model.target:
        return _finished((_time if model.target.event else _number)(graph, model, scores))
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


def _time(graph: Graph, model: SavedModel, scores: str) -> "onnx.ModelProto":
    """The expected time to the event within the bands, as `fedpdm.problem.survival.restricted_mean` computes it."""
    assert model.target is not None
    hazards = graph.add("Exp", graph.add("Add", scores, graph.constant(model.band_effects()[None])))
    before = graph.add("CumSum", hazards, graph.constant(1, np.int64), exclusive=1)
    gone = graph.add("Sub", graph.constant(1), graph.add("Exp", graph.add("Neg", hazards)))
    large = graph.add("Div", gone, hazards)
    # (1 - exp(-h))/h = exp(-h/2) sinh(h/2)/(h/2): in float32 the left side has no digits for a small h
    half = graph.add("Clip", graph.add("Mul", hazards, graph.constant(0.5)), graph.constant(1e-12), graph.constant(1))
    small = graph.add("Mul", graph.add("Exp", graph.add("Neg", half)), graph.add("Div", graph.add("Sinh", half), half))
    within = graph.add("Where", graph.add("Greater", hazards, graph.constant(1)), large, small)
    bands = graph.sum(graph.add("Mul", graph.add("Exp", graph.add("Neg", before)), within), 1)
    graph.add("Mul", bands, graph.constant(model.target.high / model.target.bands), out="predicted")
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
        elif isinstance(column, Image):
            pixels = graph.reshape(graph.input(name, *column.shape), -1, math.prod(column.shape))
            pixels = graph.add("Div", pixels, graph.constant(column.white))
            blocks.append(graph.add("Clip", pixels, graph.constant(0), graph.constant(1)))
    if schema.target and schema.target.bands > 1 and schema.target.event:  # a new row has no band yet
        blocks.append(graph.add("MatMul", graph.ones(), graph.constant(np.zeros((1, schema.target.bands - 1)))))
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
