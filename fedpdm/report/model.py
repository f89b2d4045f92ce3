"""The model itself, for the page: weight images, or signed coefficients with their names."""

import base64
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpdm.choices import SCALINGS
from fedpdm.data.features import (
    basis_of,
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
from fedpdm.runs.saved import coefficients, in_units, scaled_intervals
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
    if names[0].startswith("direction ") and pixel_scale(run.config.data.name):
        weights, names = _before_basis(run)
    shown = _smoothed_image(names)
    if shown:
        sentence += f" Pictured: the {len(shown)} weights on the smoothed image; the others see edges, and edges among these."
    shape = _image_shape([names[place].replace("scattering 0 () at", "pixel") for place in shown] or names)
    if shape:
        images, largest = _images(weights[:, shown] if shown else weights, labels, shape)
        return ModelView(sentence, largest, images, [])
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
    order = [i for i in np.argsort(p, kind="stable") if not np.isnan(p[i])]
    return [
        {
            "name": run.feature_names[i],
            "estimate": f"{found.estimate[i]:.4g}",
            "interval": f"{low[i]:.4g} to {high[i]:.4g}",
            "p": "below 0.0001" if p[i] < 1e-4 else f"{p[i]:.4f}",
        }
        for i in order[:MOST_INTERVALS]
    ]


def _before_basis(run: Run) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the weights on the features before the projection onto a basis, and their names.

    The score of an example is that of these weights, up to the example's own norm.
    """
    data = run.config.data
    inputs = without_bias(input_names(data.name, None))
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
    columns = f"{len(names):,} columns".replace(",", " ")
    if data.features == "raw":
        words = "" if data.scaling == "none" else SCALINGS.row(data.scaling).title
        return f"The {columns} of the data" + (f"; {words}." if words else ", scaled by public bounds.")
    kind = data.features
    if kind == "auto":
        kind = "scattering" if names[0].startswith(("scattering", "direction")) else "piecewise"
    return f"{columns} from a public map of one example, {kind}. {make_map(kind, names, options_of(data)).sentence}"


def _smoothed_image(names: Sequence[str]) -> list[int]:
    """Return the positions of the features of order 0, if these are a scattering of grey images."""
    return [place for place, name in enumerate(names) if name.startswith("scattering 0 () at ")]


def _image_shape(names: Sequence[str]) -> tuple[int, int] | None:
    """Return height and width, if the columns are named "pixel 0,0" to "pixel H,W" (and perhaps "bias")."""
    pixels = [re.fullmatch(r"pixel (\d+),(\d+)", name) for name in names if name != "bias"]
    if not pixels or not pixels[-1] or not all(pixels):
        return None
    height, width = int(pixels[-1][1]) + 1, int(pixels[-1][2]) + 1
    return (height, width) if height * width == len(pixels) else None


def _images(model: np.ndarray, labels: Sequence[str], shape: tuple[int, int]) -> tuple[list[dict[str, str]], float]:
    size = shape[0] * shape[1]
    pixels = model[:, :size]
    # One scale for all classes; a few very large pixels must not hide the rest.
    largest = float(np.quantile(np.abs(pixels), 0.995)) or float(np.abs(pixels).max()) or 1.0
    images = []
    for label, row in zip(labels, pixels, strict=True):
        used = f"{np.count_nonzero(row)} of {size} pixels are not zero, from {row.min():.3g} to {row.max():.3g}"
        uri = _png(row.reshape(shape) / largest)
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
