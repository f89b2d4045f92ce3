"""Public maps of one example: pure functions that see no other example and fit nothing, so they cost no privacy.

This module makes the map of the settings, with its options and its basis.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedpdm.choices import FEATURE_MAPS, SCATTERING_CENTRE
from fedpdm.choices.words import DRAWINGS, PRIVATE_BASIS
from fedpdm.config import DataSection
from fedpdm.data.basis import MOST, Basis, as_array, as_basis, drawn_rows, principal_basis
from fedpdm.data.basis import VERSION as BASIS_VERSION
from fedpdm.data.basis_files import public_digest, read_public_rows
from fedpdm.data.feature_cache import content_key, is_stored, remember
from fedpdm.data.feature_map import VERSION, FeatureMap, check_one_example_at_a_time, feature_map, without_bias
from fedpdm.data.maps import image_shape
from fedpdm.data.texts import has_text
from fedpdm.errors import ConfigError

__all__ = ["FeatureMap", "FeatureOptions", "basis_of", "check_one_example_at_a_time", "feature_map", "make_map", "map_name"]
__all__ += ["directions_in", "has_public_basis", "map_words", "options_of", "without_bias"]

CHUNK, CHUNK_NUMBERS = 2048, 2**23  # most rows, and most numbers before the projection, of one projection
BASIS_KEYS = ("basis", "basis_size")  # options that every map has
WRITTEN = ("mnist", "digits")  # data sets of handwriting
DIRECTION = "direction "  # how the columns behind a public basis are called


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
    if options["basis"] == PRIVATE_BASIS:  # comes after the map, from the clients
        options = options.replace(basis="none")
    if data.name in WRITTEN:
        drawn = {key: "strokes" for key in (SCATTERING_CENTRE.key, "basis") if options[key] == "auto"}
        options = options.replace(**drawn)
    return options


def map_name(name: str, feature_names: Sequence[str]) -> str:
    """Replace "auto" by a map: scattering for images, whose columns are pixels, hashed for texts, and piecewise for tables.

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
    if feature_names[0].startswith("pixel "):
        return "scattering"
    return "hashed" if has_text(feature_names) else "piecewise"


def map_words(data: DataSection, feature_names: Sequence[str]) -> str:
    """Name the map of the settings and its basis, with "auto" replaced by the choice.

    Parameters
    ----------
    data : DataSection
        The section [data] of the settings.
    feature_names : sequence of str
        The columns before the map.

    Returns
    -------
    str
        For instance "scattering, 90 directions of shapes".

    Examples
    --------
    >>> map_words(DataSection(name="photos/", features="auto", basis="auto", basis_size=90), ["pixel 0,0", "pixel 0,1"])
    'scattering, 90 directions of shapes'
    >>> map_words(DataSection(name="mnist", features="raw", basis="auto"), ["pixel 0,0"])  # then nothing is projected
    'raw'
    """
    name = map_name(data.features, feature_names)
    if data.basis == PRIVATE_BASIS:
        return f"{name}, {directions_in(data)} directions of the clients' second moment"
    if not has_public_basis(data, feature_names):
        return name
    return f"{name}, {directions_in(data)} directions of {with_basis_chosen(name, options_of(data))['basis']}"


def has_public_basis(data: DataSection, feature_names: Sequence[str]) -> bool:
    """Return whether the map of the settings ends with a public basis.

    Parameters
    ----------
    data : DataSection
        The section [data] of the settings.
    feature_names : sequence of str
        The columns before the map.

    Returns
    -------
    bool
        False for raw features, for a private basis, and for "auto" on tables.
    """
    name = map_name(data.features, feature_names)
    return name != "raw" and with_basis_chosen(name, options_of(data))["basis"] != "none"


def directions_in(options: DataSection | Mapping[str, Any]) -> int:
    """Return the number of directions of a basis; "auto" must have been resolved.

    Parameters
    ----------
    options : DataSection or FeatureOptions
        The section [data] of the settings, or the options of a map.

    Returns
    -------
    int
        The number.
    """
    size = options.basis_size if isinstance(options, DataSection) else options["basis_size"]
    if isinstance(size, str):
        raise ConfigError(
            f"data.basis_size={size} depends on the number of rows and on the budget, which are not known here: give a number, "
            "or build the clients' rows with fedpdm.setup.directions.federate."
        )
    return size


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
    plain = chosen == "raw" or options["basis"] == "none"  # raw features are never projected
    return FEATURE_MAPS[chosen].build(options) if plain else _behind_basis(chosen, options)


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
    size = directions_in(options)
    return _whole_basis(name, feature_names, options.replace(basis_size=max(size, MOST))).first(size)


@functools.lru_cache(maxsize=4)
def _whole_basis(name: str, feature_names: tuple[str, ...], options: FeatureOptions) -> Basis:
    """Compute all directions that are stored: however many are used, the first ones are the same bit for bit."""
    plain = FEATURE_MAPS[name].build(without_basis(options))

    def computed() -> Basis:
        if options["basis"] in DRAWINGS:
            if not feature_names[0].startswith("pixel "):
                raise ConfigError(
                    f"data.basis={options['basis']} is drawn for images, and this table's columns are no pixels: use none, "
                    "private, or a file of public rows (docs/features.md)."
                )
            rows = drawn_rows(options["basis"], *image_shape(feature_names))
        else:
            rows = read_public_rows(options["basis"], len(feature_names))
        return principal_basis(plain.encode(rows, feature_names), options["basis_size"])

    key = _basis_key(name, plain, feature_names, options)
    return computed() if key is None else as_basis(remember(key, lambda: as_array(computed())))


def _basis_key(name: str, plain: FeatureMap, feature_names: Sequence[str], options: FeatureOptions) -> str | None:
    """Return the key under which a basis is stored; None: this map is never stored."""
    if plain.key is None:
        return None
    known = (name, plain.key, source_of_basis(options), options["basis_size"], tuple(feature_names), VERSION, BASIS_VERSION)
    return content_key(np.zeros(0), "basis", *known)


def source_of_basis(options: FeatureOptions) -> str:
    """Return the source of a basis: the name of the drawings, or a digest of the public file."""
    return options["basis"] if options["basis"] in DRAWINGS else public_digest(options["basis"])


def _behind_basis(name: str, options: FeatureOptions) -> FeatureMap:
    """Make the map with a projection onto a public basis: onto all stored directions, of which the first are kept."""
    size = directions_in(options)
    options = options.replace(basis_size=max(size, MOST))
    plain = FEATURE_MAPS[name].build(without_basis(options))

    def encode(rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
        basis = basis_of(name, tuple(names), options)
        out = np.empty((len(rows), basis.directions.shape[1]), np.float32)
        chunk = min(CHUNK, max(64, CHUNK_NUMBERS // len(basis.centre)))
        for start in range(0, len(rows), chunk):  # in parts: all features before the projection would take gigabytes
            part = slice(start, start + chunk)
            out[part] = basis.project(plain.encode(rows[part], names))
        return out

    drawn = {"strokes": "made-up pen strokes", "shapes": "made-up shapes and strokes"}
    source = drawn.get(options["basis"], f"the public file {options['basis']}")
    sentence = f"{plain.sentence} Projected onto {size} principal directions of {source}, half whitened."

    def columns(names: Sequence[str]) -> list[str]:
        most = basis_of(name, tuple(names), options).directions.shape[1]
        return [f"{DIRECTION}{index}" for index in range(min(size, most))]

    def before(names: Sequence[str]) -> str:
        stored = _basis_key(name, plain, names, options)
        known = stored is None or is_stored(stored)
        return "" if known else f"finding the directions of {source}, once for images of this size"

    key = (*plain.key, source_of_basis(options), options["basis_size"]) if plain.key else None
    why = f"{plain.why} The directions come from {source} alone."
    return FeatureMap(name, sentence, encode, columns, key=key, why=why, before=before, keep=size)
