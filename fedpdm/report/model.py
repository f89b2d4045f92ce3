"""The model itself, for the page: weight images, or signed coefficients with their names."""

import base64
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpdm.choices import SCALINGS
from fedpdm.choices.words import PRIVATE_BASIS
from fedpdm.data.features import (
    basis_of,
    directions_in,
    make_map,
    map_name,
    options_of,
    with_basis_chosen,
    without_basis,
    without_bias,
)
from fedpdm.data.rows import input_names, pixel_scale
from fedpdm.engines.simulation.steadiness import contrasts
from fedpdm.report.reading import Run
from fedpdm.runs.saved import coefficients, in_units, interval_names, scaled_intervals
from fedpdm.setup.build import loss_factory

__all__ = ["ModelView", "view_model"]

TOP = 20  # coefficients shown per class
LEVEL, MOST_INTERVALS = 0.95, 100
POSITIVE, NEGATIVE = (0, 114, 178), (213, 94, 0)  # blue and vermilion: distinct also for colour-blind readers


class ModelView(NamedTuple):
    """How a model is shown.

    Attributes
    ----------
    features
        The inputs of the model, in words.
    images
        Per class a name, a data URI and a text alternative; empty unless the columns are pixels.
    tables
        Per class a title and rows (name, value, share of the largest, and how steady it is); empty if there are images.
    steady
        Whether the report knows how often signs stayed the same.
    intervals
        Name, estimate, interval at 95 % and p-value of every coefficient that has them, the smallest p-value first.
    """

    features: str
    largest: float
    images: list[dict[str, str]]
    tables: list[dict[str, Any]]
    steady: bool = False
    intervals: list[dict[str, Any]] = []  # noqa: RUF012 - never changed


def view_model(run: Run) -> ModelView:
    """Choose how to show a model: images if the columns are pixels, else its largest coefficients.

    Parameters
    ----------
    run : Run
        A finished run.

    Returns
    -------
    ModelView
        Texts, images and tables for the page.
    """
    names, labels = run.feature_names, run.class_names
    if not run.linear:
        count, used = run.model.size, np.count_nonzero(run.model)
        return ModelView(f"A custom model: {count} parameters, {used} of them not zero.", 0.0, [], [])
    sentence = _features_sentence(run, names)
    weights = run.model
    if names[0].startswith("direction ") and (inputs := _pixel_names(run)):
        weights, names = _before_basis(run, inputs)
    pictured, added = _picture(weights, names)
    if pictured is not None:
        images, largest = _images(pictured, labels)
        return ModelView(sentence + added, largest, images, [])
    model = coefficients(weights, run.config.data.scaling, names)
    if run.target:
        link = loss_factory(run.config)().link
        model = in_units(model, names, run.target, link.name if link else "")
    steady = run.steadiness if all(values.shape == contrasts(model).shape for values in run.steadiness.values()) else {}
    tables, largest = _tables(model, labels, names, steady), float(np.abs(model).max())
    return ModelView(sentence, largest, [], tables, bool(steady), _intervals(run))


def _intervals(run: Run) -> list[dict[str, Any]]:
    if run.intervals is None:
        return []
    link = loss_factory(run.config)().link
    found = scaled_intervals(
        run.intervals, run.config.data.scaling, run.feature_names, run.target, link.name if link and run.target else ""
    )
    (low, high), p = found.ends(LEVEL), found.p_values()
    names = interval_names(run.class_names, run.feature_names)
    order = [i for i in np.argsort(p, kind="stable") if not np.isnan(p[i])]
    return [
        {
            "name": names[i],
            "estimate": f"{found.estimate[i]:.4g}",
            "interval": f"{low[i]:.4g} to {high[i]:.4g}",
            "p": "below 0.0001" if p[i] < 1e-4 else f"{p[i]:.4f}",
        }
        for i in order[:MOST_INTERVALS]
    ]


def _pixel_names(run: Run) -> Sequence[str]:
    """Return the names of the columns before the map, if they are pixels and known."""
    name = run.config.data.name
    if run.schema is None and pixel_scale(name) is None:
        return ()
    inputs = without_bias(input_names(name, run.schema))
    return inputs if inputs[0].startswith("pixel ") else ()


def _before_basis(run: Run, inputs: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the weights on the features before the projection onto a basis, and their names.

    The score of an example is that of these weights, up to the example's own norm.
    """
    data = run.config.data
    kind = map_name(data.features, inputs)
    options = with_basis_chosen(kind, options_of(data))
    basis = basis_of(kind, tuple(inputs), options)
    weights = run.model[:, :-1] @ basis.directions.T
    return np.column_stack([weights, run.model[:, -1]]), (
        *make_map(kind, inputs, without_basis(options)).columns(inputs),
        "bias",
    )


def _features_sentence(run: Run, names: Sequence[str]) -> str:
    data = run.config.data
    if data.basis != PRIVATE_BASIS:
        return _public_sentence(run, names)
    size = min(directions_in(data), len(names))
    return f"{_public_sentence(run, names)} Trained on {size} directions of their noised second moment."


def _public_sentence(run: Run, names: Sequence[str]) -> str:
    data = run.config.data
    columns = f"{len(names):,} columns".replace(",", " ")
    if data.features == "raw":
        words = "" if data.scaling == "none" else SCALINGS.row(data.scaling).title
        return f"The {columns} of the data" + (f"; {words}." if words else ", scaled by public bounds.")
    kind = data.features
    if kind == "auto":
        inputs = input_names(data.name, run.schema) if run.schema is not None else ()
        images = names[0].startswith(("scattering", "direction"))
        kind = map_name(kind, inputs) if inputs else "scattering" if images else "piecewise"
    return f"{columns} from a public map of one example, {kind}. {make_map(kind, names, options_of(data)).sentence}"


_SMOOTHED = re.compile(r"scattering (\d+) \(\) at (\d+),(\d+)")  # the features of order 0
_PIXEL = re.compile(r"pixel (\d+),(\d+)(?:,(\d+))?")


def _picture(weights: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray | None, str]:
    """Return the weights as pictures [classes, height, width], and a sentence; None if the columns are no pixels.

    The weights of the channels are added: that is the effect of light on all of them.
    """
    smoothed = [(place, found) for place, name in enumerate(names) if (found := _SMOOTHED.fullmatch(name))]
    if smoothed:
        places = [(place, int(found[2]), int(found[3])) for place, found in smoothed]
        depth = 1 + max(int(found[1]) for _, found in smoothed)
        words = f" Pictured: the {len(smoothed)} weights on the smoothed image; the others see edges, and edges among these."
    else:
        pixels = [_PIXEL.fullmatch(name) for name in names if name != "bias"]
        if not pixels or not all(pixels):
            return None, ""
        places = [(place, int(found[1]), int(found[2])) for place, found in enumerate(pixels) if found]
        depth, words = 1 + max(int(found[3] or 0) for found in pixels if found), ""
    height, width = 1 + max(row for _, row, _ in places), 1 + max(column for *_, column in places)
    if depth * height * width != len(places):
        return None, ""
    picture = np.zeros((len(weights), height, width))
    for place, row, column in places:
        picture[:, row, column] += weights[:, place]
    return picture, words + (f" The weights of the {depth} channels are added." if depth > 1 else "")


def _images(pixels: np.ndarray, labels: Sequence[str]) -> tuple[list[dict[str, str]], float]:
    size = pixels[0].size
    # One scale for all classes; a few very large pixels must not hide the rest.
    largest = float(np.quantile(np.abs(pixels), 0.995)) or float(np.abs(pixels).max()) or 1.0
    images = []
    for label, row in zip(labels, pixels, strict=True):
        used = f"{np.count_nonzero(row)} of {size} pixels are not zero, from {row.min():.3g} to {row.max():.3g}"
        uri = _png(row / largest)
        images.append({"name": label, "uri": uri, "alt": f"Weights of class {label}: {used}."})
    return images, largest


def _png(weights: np.ndarray) -> str:
    """Return a data URI. Zero is transparent, so the image fits a light page and a dark one."""
    alpha = np.clip(np.abs(weights), 0, 1)[..., None] * 255
    colour = np.where(weights[..., None] > 0, POSITIVE, NEGATIVE)
    pixels = np.concatenate([colour, np.round(alpha)], axis=2).astype(np.uint8)
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 6, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def _tables(
    model: np.ndarray, labels: Sequence[str], names: Sequence[str], steady: dict[str, np.ndarray]
) -> list[dict[str, Any]]:
    """Return the tables. Two classes have one list, the difference of their rows: the prediction depends on nothing else."""
    titles = [f"Class {label}" for label in labels] if len(labels) > 1 else [f"Prediction of {labels[0]}"]
    if len(model) == 2:
        titles = [f"Towards {labels[1]} (positive) or {labels[0]} (negative)"]
    shown = enumerate(contrasts(model))
    return [
        {"title": titles[k], "rows": _top(row, names, {name: values[k] for name, values in steady.items()})} for k, row in shown
    ]


def _top(weights: np.ndarray, names: Sequence[str], steady: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    order = [i for i in np.argsort(-np.abs(weights), kind="stable")[:TOP] if weights[i]]
    largest = float(np.abs(weights).max()) or 1.0
    rows = []
    for i in order:
        known = {name: float(values[i]) for name, values in steady.items()}
        row = {"name": names[i], "value": float(weights[i]), "share": float(abs(weights[i]) / largest)}
        rows.append(row | {"doubtful": bool(known.pop("noise", 0)), "steady": known})
    return rows
