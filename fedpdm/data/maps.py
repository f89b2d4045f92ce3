"""The public maps of this package (`fedpdm.choices.FEATURE_MAPS`)."""

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from fedpdm.data.adult import ADULT_FEATURES
from fedpdm.data.feature_map import FeatureMap, rows_at_norm_one
from fedpdm.data.piecewise import ADULT_KNOTS, ADULT_LEFT_OUT, Knots, encode_table
from fedpdm.data.scattering import GROUP_FLOOR, filter_bank, groups_of_paths, paths, scatter
from fedpdm.data.strokes import stroke_images
from fedpdm.errors import ConfigError

__all__: list[str] = []  # the table names the maps

STROKES = 500  # images whose mean is `scattering_centre`


def raw() -> FeatureMap:
    """Make the map that leaves features as they are."""
    sentence = "The features as they are loaded, scaled by public bounds; data.scaling may scale them to norm 1."
    return FeatureMap("raw", sentence, lambda rows, _: rows, lambda names: names, unit=False)


def image_shape(feature_names: Sequence[str]) -> tuple[int, int, int]:
    """Return height, width and channels, from names like "pixel 27,27" or "pixel 31,31,2" (the channel last)."""
    last = feature_names[-1].removeprefix("pixel ").split(",")
    shape = [int(number) + 1 for number in last if number.isdigit()]
    if len(shape) in (2, 3) and math.prod(shape) == len(feature_names):
        return shape[0], shape[1], shape[2] if len(shape) == 3 else 1
    raise ConfigError(
        f"data.features=scattering is for images, whose columns are named like 'pixel 27,27' or 'pixel 31,31,2'; the last of "
        f"these {len(feature_names)} columns is {feature_names[-1]!r}: use piecewise or fourier."
    )


def scattering(*, scattering_scale: int, scattering_centre: str) -> FeatureMap:
    """Make the wavelet scattering of images; the centre "auto" is "none" here (`options_of` handles handwriting)."""
    scale = scattering_scale

    def encode(rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
        height, width, depth = image_shape(names)
        images = rows.reshape(-1, height, width, depth).transpose(0, 3, 1, 2).reshape(-1, height, width)
        waves = scatter(images, scale)
        waves = waves.reshape(len(rows), depth, *waves.shape[1:])
        start = 0
        # paths of the same order and scales have similar sizes: together, in all colours, they get mean 0 and variance 1
        for count in groups_of_paths(scale):
            stop = start + count
            group = waves[:, :, start:stop]
            group -= group.mean(axis=(1, 2, 3, 4), keepdims=True)
            variance = np.einsum("edcij,edcij->e", group, group) / math.prod(group.shape[1:])
            group /= np.sqrt(np.maximum(variance, GROUP_FLOOR))[:, None, None, None, None]
            start = stop
        together = waves.reshape(len(rows), -1)
        if scattering_centre != "strokes":
            return together
        return rows_at_norm_one(together, bias=False) - strokes_centre(scale, tuple(names))

    def columns(names: Sequence[str]) -> list[str]:
        height, width, depth = image_shape(names)
        size = [range(len(matrix)) for matrix in filter_bank(height, width, scale).smoothers[0]]
        parts = itertools.product(range(depth), paths(scale), *size)
        return [f"scattering {channel} {path} at {row},{column}" for channel, path, row, column in parts]

    sentence = (
        f"Images: wavelet scattering of orders 0 to 2 with 8 angles and {scale} scales, sampled at every {2**scale}th pixel, "
        "each order and scale scaled to mean 0 and variance 1 within the image; stable under small shifts and deformations."
    )
    if scattering_centre == "strokes":
        sentence += (
            f" The common part of {STROKES} made-up pen strokes is subtracted, since it does not help to tell images apart."
        )
    return FeatureMap("scattering", sentence, encode, columns, key=(scale, scattering_centre))


@functools.lru_cache(maxsize=4)
def strokes_centre(scale: int, feature_names: tuple[str, ...]) -> np.ndarray:
    """Return the mean scattering, each at norm 1, of pen strokes on images of these pixels: a public constant."""
    height, width, depth = image_shape(feature_names)
    rows = stroke_images(height, width, STROKES).reshape(STROKES, -1).repeat(depth, axis=1)
    plain = scattering(scattering_scale=scale, scattering_centre="none")
    return rows_at_norm_one(plain.encode(rows, feature_names), bias=False).mean(axis=0)


def table_knots(feature_names: Sequence[str]) -> tuple[dict[str, Knots], tuple[str, ...]]:
    """Return the knots of a table's numbers by name, and the columns left out. Adult's knots are for Adult's bounds only."""
    return (ADULT_KNOTS, ADULT_LEFT_OUT) if tuple(feature_names) == ADULT_FEATURES else ({}, ())


def piecewise() -> FeatureMap:
    """Make the hat functions over the columns of a table."""
    sentence = "Tables: every number becomes hat functions over public knots, every word the indicators of its levels."
    return FeatureMap(
        "piecewise",
        sentence,
        lambda rows, names: encode_table(rows, names, *table_knots(names))[0],
        lambda names: encode_table(np.zeros((0, len(names))), names, *table_knots(names))[1],
    )


@functools.lru_cache(maxsize=1)
def fourier_draws(inputs: int, count: int, bandwidth: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return directions [inputs, cosines] and shifts [cosines] of the random cosines."""
    draw = np.random.default_rng(seed)
    directions = draw.standard_normal((inputs, count)) / bandwidth
    return directions.astype(np.float32), draw.uniform(0, 2 * np.pi, count).astype(np.float32)


def fourier(*, fourier_count: int, fourier_bandwidth: float, features_seed: int) -> FeatureMap:
    """Make random cosines, drawn from a public seed (Rahimi and Recht, 2007).

    References
    ----------
    Rahimi, Recht: "Random features for large-scale kernel machines", NeurIPS 2007.
    """
    count, bandwidth = fourier_count, fourier_bandwidth

    def encode(rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
        directions, shifts = fourier_draws(len(names), count, bandwidth, features_seed)
        return np.cos(rows_at_norm_one(rows, bias=False) @ directions + shifts)

    sentence = (
        f"Anything: {count} random cosines of the example at norm 1, drawn from a public seed; a linear model on them is close "
        f"to one with the Gaussian kernel of bandwidth {bandwidth:g}."
    )
    return FeatureMap("fourier", sentence, encode, lambda _: [f"cosine {index}" for index in range(count)])
