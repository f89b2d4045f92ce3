"""Public maps of one example: pure functions that see no other example and fit nothing, so they cost no privacy."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpdm.choices import FEATURE_MAPS, SCATTERING_CENTRE
from fedpdm.config import DataSection
from fedpdm.data.basis import DRAWINGS, Basis, as_array, as_basis, drawn_rows, principal_basis, public_digest, read_public_rows
from fedpdm.data.basis import VERSION as BASIS_VERSION
from fedpdm.data.datasets import ADULT_FEATURES, Dataset
from fedpdm.data.feature_cache import content_key, remember
from fedpdm.data.piecewise import ADULT_KNOTS, ADULT_LEFT_OUT, Knots, column_count, encode_table
from fedpdm.data.scattering import GROUP_FLOOR, filter_bank, groups_of_paths, paths, scatter
from fedpdm.data.strokes import stroke_images
from fedpdm.errors import ConfigError

__all__ = [
    "SCALINGS",
    "scale_features",
    "FeatureMap",
    "FeatureOptions",
    "options_of",
    "map_name",
    "make_map",
    "basis_of",
    "feature_map",
    "check_one_example_at_a_time",
]

CHUNK = 2048  # rows of one projection
BIAS = 0.2  # the constant column beside features of norm 1


def _root(features: np.ndarray) -> np.ndarray:
    return np.sign(features) * np.sqrt(np.abs(features))


def _centred(features: np.ndarray) -> np.ndarray:
    return features - features.mean(axis=1, keepdims=True)


def _blurred(features: np.ndarray) -> np.ndarray:
    """Smooth square images by the binomial kernel (1, 4, 6, 4, 1)/16 in both directions, zero outside."""
    side = math.isqrt(features.shape[1])
    if side * side != features.shape[1]:
        raise ConfigError(
            f"data.scaling=blurred is for square images, but there are {features.shape[1]} features: choose another scaling."
        )
    images = features.reshape(-1, side, side)
    for axis in (1, 2):
        padding = [(0, 0), (0, 0), (0, 0)]
        padding[axis] = (2, 2)
        padded = np.pad(images, padding)
        shifted = (np.take(padded, range(shift, shift + side), axis=axis) for shift in range(5))
        images = sum(weight / 16 * part for weight, part in zip((1, 4, 6, 4, 1), shifted, strict=True))
    return np.asarray(images).reshape(len(features), -1)


def blur_matrix(features: int) -> np.ndarray:
    """Return the matrix [features, features] with which `_blurred` multiplies a row."""
    return _blurred(np.eye(features, dtype=np.float32))


SCALINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "unit": lambda features: features,
    "root": _root,
    "centred": _centred,
    "centred-root": lambda features: _centred(_root(features)),
    "blurred": lambda features: _centred(_blurred(_root(features))),
}


def scale_features(dataset: Dataset, scaling: str) -> Dataset:
    """Map every example's features (but the bias), then scale them to norm 1; the bias column becomes 0.2.

    Parameters
    ----------
    dataset : Dataset
        The examples.
    scaling : str
        "root" takes signed square roots, which makes faint pixels stronger; "centred" subtracts the example's own mean; "unit"
        only scales to norm 1; "blurred" is for images: roots, smoothed, centred. "bounded" does not scale to norm 1: it divides
        a table's row in [0, 1] by the root of the number of its columns, so the norm is at most 1.

    Returns
    -------
    Dataset
        The scaled examples; each depends on no other one.
    """

    def scale(features: np.ndarray) -> np.ndarray:
        if scaling == "bounded":
            return features / np.float32(column_count(dataset.feature_names) ** 0.5)
        bias = dataset.feature_names[-1] == "bias"
        columns = features[:, :-1] if bias else features
        columns = SCALINGS[scaling](columns.astype(np.float32))
        norms = np.linalg.norm(columns, axis=1, keepdims=True)
        columns = columns / np.maximum(norms, 1e-12)
        if bias:
            columns = np.concatenate([columns, np.full((len(columns), 1), BIAS)], axis=1)
        return columns.astype(np.float32)

    return dataset._replace(features=scale(dataset.features), test_features=scale(dataset.test_features))


ONE_EXAMPLE = "one example"
BASIS_KEYS = ("basis", "basis_size")  # options that every map has
WRITTEN = ("mnist", "digits")  # data sets of handwriting
STROKES = 500  # images whose mean is `scattering_centre`
VERSION = 1  # part of the cache's key: raise it whenever the numbers of a map change
TOLERANCE = 1e-5  # for features that should be equal: a larger batch may take sums in another order


class FeatureMap(NamedTuple):
    """A map of the features of one example.

    Attributes
    ----------
    name, sentence : str
        Its name, and a sentence about it for reports.
    encode : callable
        [examples, n] and the n column names (both without the bias) -> [examples, m], row by row.
    columns : callable
        The n column names -> the m new ones.
    depends_on : str
        "one example", which costs no privacy; anything else is refused under the sound mechanism.
    unit : bool
        Scale every row to norm 1, and add a constant column of 0.2 (the bias).
    key : tuple
        The options that distinguish this map in the cache; None if it is too fast to need one.
    """

    name: str
    sentence: str
    encode: Callable[[np.ndarray, Sequence[str]], np.ndarray]
    columns: Callable[[Sequence[str]], Sequence[str]]
    depends_on: str = ONE_EXAMPLE
    unit: bool = True
    key: tuple[object, ...] | None = None

    def rows(self, features: np.ndarray, feature_names: Sequence[str]) -> np.ndarray:
        """Return the features of these examples, each by itself."""
        if not self.unit:
            return self.encode(features, feature_names)
        inputs = len(without_bias(feature_names))
        return _unit_rows(self.encode(features[:, :inputs], feature_names[:inputs]), bias=True)

    def names(self, feature_names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns after the map."""
        return (*self.columns(without_bias(feature_names)), "bias") if self.unit else tuple(feature_names)

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the data set with its training and its test examples mapped."""
        names = dataset.feature_names

        def mapped(features: np.ndarray) -> np.ndarray:
            if self.key is None:
                return self.rows(features, names)
            key = content_key(features, self.name, self.key, names, VERSION)
            return remember(key, lambda: self.rows(features, names))

        return dataset._replace(
            features=mapped(dataset.features), test_features=mapped(dataset.test_features), feature_names=self.names(names)
        )


class FeatureOptions(Mapping[str, Any]):
    """The options of all maps by key, as in the section [data] of the settings; a missing key has its default.

    Examples
    --------
    >>> FeatureOptions(basis_size=9)["basis_size"], FeatureOptions()["fourier_count"]
    (9, 2000)
    """

    def __init__(self, **given: Any) -> None:
        known = {key: option.default for key, option in FEATURE_MAPS.options().items()}
        known |= {key: DataSection.model_fields[key].default for key in BASIS_KEYS}
        if unknown := given.keys() - known.keys():
            raise ConfigError(f"Unknown options of feature maps: {', '.join(sorted(unknown))}; they are {', '.join(known)}.")
        self._values = known | given

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def replace(self, **changes: Any) -> "FeatureOptions":
        """Return the options with some changed."""
        return FeatureOptions(**(self._values | changes))


def options_of(data: DataSection) -> FeatureOptions:
    """Take the options from the settings, and replace "auto" by a choice.

    Parameters
    ----------
    data : DataSection
        The section [data] of the settings.

    Returns
    -------
    FeatureOptions
        The options.
    """
    options = FeatureOptions()
    options = options.replace(**{key: getattr(data, key, default) for key, default in options.items()})
    if data.name in WRITTEN:
        drawn = {key: "strokes" for key in (SCATTERING_CENTRE.key, "basis") if options[key] == "auto"}
        options = options.replace(**drawn)
    return options


def without_bias(feature_names: Sequence[str]) -> Sequence[str]:
    return feature_names[:-1] if feature_names[-1] == "bias" else feature_names


def _unit_rows(columns: np.ndarray, bias: bool) -> np.ndarray:
    """Scale rows to norm 1, and add the bias column."""
    out = np.full((len(columns), columns.shape[1] + bias), BIAS, np.float32)
    norms = np.sqrt(np.einsum("ij,ij->i", columns, columns))  # without a copy: the columns may take a gigabyte
    np.divide(columns, np.maximum(norms, 1e-12)[:, None], out=out[:, : columns.shape[1]], casting="same_kind")
    return out


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
        start = 0
        # channels of the same order and scales have similar sizes: together they get mean 0 and variance 1
        for count in groups_of_paths(scale):
            stop = start + count
            group = waves[:, start:stop]
            group -= group.mean(axis=(1, 2, 3), keepdims=True)
            variance = np.einsum("ecij,ecij->e", group, group) / math.prod(group.shape[1:])
            group /= np.sqrt(np.maximum(variance, GROUP_FLOOR))[:, None, None, None]
            start = stop
        together = waves.reshape(len(rows), -1)
        if scattering_centre != "strokes":
            return together
        return _unit_rows(together, bias=False) - strokes_centre(scale, tuple(names))

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
    return _unit_rows(plain.encode(rows, feature_names), bias=False).mean(axis=0)


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
        return np.cos(_unit_rows(rows, bias=False) @ directions + shifts)

    sentence = (
        f"Anything: {count} random cosines of the example at norm 1, drawn from a public seed; a linear model on them is close "
        f"to one with the Gaussian kernel of bandwidth {bandwidth:g}."
    )
    return FeatureMap("fourier", sentence, encode, lambda _: [f"cosine {index}" for index in range(count)])


def map_name(name: str, feature_names: Sequence[str]) -> str:
    """Replace "auto" by a map: scattering for images, whose columns are pixels, and piecewise for tables.

    Parameters
    ----------
    name : str
        data.features of the settings.
    feature_names : sequence of str
        The columns.

    Returns
    -------
    str
        A key of `fedpdm.choices.FEATURE_MAPS`.
    """
    if name != "auto":
        return name
    return "scattering" if feature_names[0].startswith("pixel ") else "piecewise"


def make_map(name: str, feature_names: Sequence[str], options: Mapping[str, Any] | None = None) -> FeatureMap:
    """Make a map by its name.

    Parameters
    ----------
    name : str
        A key of `fedpdm.choices.FEATURE_MAPS`, or "auto".
    feature_names : sequence of str
        The columns, from which "auto" chooses.
    options : mapping, optional
        The options by key.

    Returns
    -------
    FeatureMap
        The map, with its basis if there is one.
    """
    chosen = map_name(name, feature_names)
    if chosen not in FEATURE_MAPS:
        raise ConfigError(f"unknown feature map {name!r}: the maps are {', '.join(FEATURE_MAPS)} and auto")
    options = with_basis_chosen(chosen, FeatureOptions(**(options or {})))
    return FEATURE_MAPS[chosen].build(options) if options["basis"] == "none" else _behind_basis(chosen, options)


def with_basis_chosen(name: str, options: FeatureOptions) -> FeatureOptions:
    """Replace the basis "auto" that `options_of` left: shapes for images, none for tables."""
    if options["basis"] != "auto":
        return options
    return options.replace(basis="shapes" if name == "scattering" else "none")


def without_basis(options: FeatureOptions) -> FeatureOptions:
    """Return the options of the map before a basis, which has its own centre."""
    return options.replace(basis="none", scattering_centre="none")


@functools.lru_cache(maxsize=4)
def basis_of(name: str, feature_names: tuple[str, ...], options: FeatureOptions) -> Basis:
    """Compute the basis after a map, from made-up images or from a public file.

    Parameters
    ----------
    name : str
        The map.
    feature_names : tuple of str
        The columns, without the bias.
    options : FeatureOptions
        The options of map and basis.

    Returns
    -------
    Basis
        The basis.
    """
    plain = FEATURE_MAPS[name].build(without_basis(options))

    def computed() -> Basis:
        if options["basis"] in DRAWINGS:
            rows = drawn_rows(options["basis"], *image_shape(feature_names))
        else:
            rows = read_public_rows(Path(options["basis"]), len(feature_names))
        return principal_basis(plain.encode(rows, feature_names), options["basis_size"])

    if plain.key is None:
        return computed()
    known = (name, plain.key, source_of_basis(options), options["basis_size"], feature_names, VERSION, BASIS_VERSION)
    return as_basis(remember(content_key(np.zeros(0), "basis", *known), lambda: as_array(computed())))


def source_of_basis(options: FeatureOptions) -> str:
    """Return the source of a basis: the name of the drawings, or a digest of the public file."""
    return options["basis"] if options["basis"] in DRAWINGS else public_digest(Path(options["basis"]))


def _behind_basis(name: str, options: FeatureOptions) -> FeatureMap:
    """Make the map with a projection onto a public basis."""
    plain = FEATURE_MAPS[name].build(without_basis(options))

    def encode(rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
        basis = basis_of(name, tuple(names), options)
        out = np.empty((len(rows), basis.directions.shape[1]), np.float32)
        for start in range(0, len(rows), CHUNK):  # in parts: all features before the projection would take gigabytes
            part = slice(start, start + CHUNK)
            out[part] = basis.project(plain.encode(rows[part], names))
        return out

    drawn = {"strokes": "made-up pen strokes", "shapes": "made-up shapes and strokes"}
    source = drawn.get(options["basis"], f"the public file {options['basis']}")
    sentence = f"{plain.sentence} Projected onto {options['basis_size']} principal directions of {source}, half whitened."

    def columns(names: Sequence[str]) -> list[str]:
        size = basis_of(name, tuple(names), options).directions.shape[1]
        return [f"direction {index}" for index in range(size)]

    key = (options["scattering_scale"], source_of_basis(options), options["basis_size"]) if plain.key else None
    return FeatureMap(name, sentence, encode, columns, key=key)


def feature_map(name: str, function: Callable[[np.ndarray], np.ndarray], sentence: str = "") -> FeatureMap:
    """Make a feature map from your own function.

    Parameters
    ----------
    name : str
        Its name.
    function : callable
        A pure function of one example's features [n] (without the bias) to [m] numbers.
    sentence : str
        A sentence about it for reports.

    Returns
    -------
    FeatureMap
        The map.

    Examples
    --------
    >>> squares = feature_map("squares", lambda example: np.concatenate([example, example**2]))
    >>> squares.rows(np.array([[0.0, 0.5], [1.0, 1.0]], np.float32), ["a", "b"]).round(2).tolist()[1]
    [0.5, 0.5, 0.5, 0.5, 0.20000000298023224]
    """

    def encode(rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
        del names
        mapped = np.stack([np.asarray(function(row), np.float32) for row in rows])
        if mapped.ndim != 2 or not np.isfinite(mapped).all():
            raise ConfigError(f"feature map {name!r} must return [m] finite numbers, but its shape is {mapped.shape[1:]}")
        return mapped

    def columns(names: Sequence[str]) -> list[str]:
        width = encode(np.zeros((1, len(names)), np.float32), names).shape[1]
        return [f"{name} {index}" for index in range(width)]

    return FeatureMap(name, sentence or f"A custom map of one example, {name!r}.", encode, columns)


def check_one_example_at_a_time(chosen: FeatureMap, examples: np.ndarray, feature_names: Sequence[str]) -> None:
    """Refuse a map unless an example's features are the same alone, again, in a batch, and in that batch in reverse order.

    A check cannot detect that a map was fitted to data: the map itself must declare it, in `depends_on`.

    Parameters
    ----------
    chosen : FeatureMap
        The map.
    examples : ndarray
        [examples, n], on which it is tried.
    feature_names : sequence of str
        The columns.

    Raises
    ------
    ConfigError
        If the features of an example depend on other examples.
    """
    if chosen.depends_on != ONE_EXAMPLE:
        raise ConfigError(
            f"feature map {chosen.name!r} depends on {chosen.depends_on}, which the sound mechanism does not allow: it must "
            "depend on one example alone; choose another map, or fit it to public data only"
        )
    together = chosen.rows(examples, feature_names)
    turned = chosen.rows(examples[::-1], feature_names)[::-1]
    alone = np.concatenate([chosen.rows(examples[row : row + 1], feature_names) for row in range(len(examples))])
    for other, how in ((turned, "in another order"), (alone, "alone")):
        gap = float(np.abs(together - other).max())
        if not gap <= TOLERANCE:
            raise ConfigError(
                f"feature map {chosen.name!r} gives an example other features {how} than in a batch (they differ by {gap:.3g}, "
                f"allowed {TOLERANCE:g}): it uses other examples, which the sound mechanism does not allow. Let it use one "
                "example at a time (fedpdm.data.features.feature_map)"
            )
