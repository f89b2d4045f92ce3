"""Piecewise-linear encoding of tables: numbers become hat functions over public knots, so a linear model can bend."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedpdm.errors import ConfigError

__all__ = ["Knots", "ADULT_KNOTS", "ADULT_LEFT_OUT", "hats", "encode_table", "knots_of", "table_plan", "column_count"]
__all__ += ["FIRST", "INDICATOR", "MISSING"]


class Knots(NamedTuple):
    """How one number of a table is encoded; all of it is public and chosen beforehand.

    Attributes
    ----------
    low, high : float
        The public bounds that the data set's loader scaled to 0 and 1.
    points : tuple of float
        The tips of the hats, increasing, in the number's own unit.
    zero_apart : bool
        Zero gets no hat, and every other value an indicator: for amounts that are mostly zero.
    logarithmic : bool
        The hats are linear in the logarithm; values below the first point count as that point.
    """

    low: float
    high: float
    points: tuple[float, ...]
    zero_apart: bool = False
    logarithmic: bool = False


# Written by hand, not computed from rows. But the number of knots was chosen on a validation split of Adult, like a tuned step
# size: on Adult itself that choice is not private. For your own data, give your own knots.
ADULT_KNOTS: dict[str, Knots] = {
    "age": Knots(17, 90, (17, 25, 35, 45, 60, 90)),
    "education-num": Knots(1, 16, (1, 5, 9, 10, 12, 13, 14, 16)),
    "capital-gain": Knots(0, 99999, (100, 3000, 5000, 7000, 15000, 99999), zero_apart=True, logarithmic=True),
    "capital-loss": Knots(0, 4356, (0, 1500, 1800, 2000, 2500, 4356), zero_apart=True),
    "hours-per-week": Knots(1, 99, (1, 20, 35, 40, 45, 55, 99)),
}
ADULT_LEFT_OUT = ("native-country",)  # 41 levels, most of which noise would drown

EVEN = Knots(0, 1, (0, 0.2, 0.4, 0.6, 0.8, 1))  # for a number without its own knots
INDICATOR = Knots(0, 1, (0, 1))  # of missing values: between 0 and 1 there is none, and a hat there would get noise alone
MISSING = " missing"  # the end of such an indicator's name
FIRST = "(first or unknown)"  # the level that has no indicator among the columns


def hats(values: np.ndarray, points: Sequence[float]) -> np.ndarray:
    """Evaluate hat functions: 1 at their own point, 0 from the neighbouring points on, linear between.

    Parameters
    ----------
    values : ndarray
        Numbers; those outside the points count as the nearest point.
    points : sequence of float
        Increasing points.

    Returns
    -------
    ndarray
        [values, points]; each row sums to 1.

    Examples
    --------
    >>> hats(np.array([0.0, 1.5, 9.0]), (0, 1, 2))
    array([[1. , 0. , 0. ],
           [0. , 0.5, 0.5],
           [0. , 0. , 1. ]])
    """
    if len(points) < 2 or not all(lower < upper for lower, upper in itertools.pairwise(points)):
        raise ConfigError(f"the knots {tuple(points)} do not work: give at least 2, each above the one before")
    return np.stack([np.interp(values, points, tip) for tip in np.eye(len(points))], axis=1)


def encode_table(
    features: np.ndarray,
    feature_names: Sequence[str],
    knots: Mapping[str, Knots] = ADULT_KNOTS,
    left_out: Sequence[str] = ADULT_LEFT_OUT,
    crosses: Sequence[tuple[str, str]] = (),
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Encode rows of scaled columns, and name the new columns. Each row is encoded by itself.

    Parameters
    ----------
    features, feature_names : ndarray, sequence of str
        [examples, n] in [0, 1]. Columns "word=level" are the indicators of every level but the first; all others are
        numbers.
    knots : mapping of str to Knots
        Knots of the numbers by name; a number without knots gets six even ones, an indicator of missing values the ends.
    left_out : sequence of str
        Numbers or words that are not used.
    crosses : sequence of pairs of str
        Numbers or words whose encodings are multiplied, every column of the one with every column of the other.

    Returns
    -------
    tuple
        The encoded features, and the names of their columns.
    """
    blocks: dict[str, tuple[np.ndarray, list[str]]] = {}
    for name, members in _columns(feature_names).items():
        if name in left_out:
            continue
        values = features[:, members].astype(float)
        if "=" in feature_names[members[0]]:
            levels = [f"{name}={FIRST}", *(feature_names[member] for member in members)]
            blocks[name] = np.concatenate([1 - values.sum(axis=1, keepdims=True), values], axis=1), levels
        else:
            blocks[name] = _encode_number(values[:, 0], name, knots_of(name, feature_names, knots))
    for one, other in crosses:
        if missing := {one, other} - blocks.keys():
            raise ConfigError(f"cannot cross {one!r} with {other!r}: there is no {min(missing)!r} among {', '.join(blocks)}")
        blocks[f"{one} x {other}"] = _cross(blocks[one], blocks[other])
    encoded = np.concatenate([block for block, _ in blocks.values()], axis=1, dtype=np.float32, casting="same_kind")
    return encoded, tuple(name for _, names in blocks.values() for name in names)


def table_plan(
    feature_names: Sequence[str], knots: Mapping[str, Knots], left_out: Sequence[str]
) -> list[tuple[list[int], Knots | None]]:
    """List the columns that `encode_table` encodes, in its order.

    Parameters
    ----------
    feature_names : sequence of str
        Names of the columns.
    knots : mapping of str to Knots
        Knots of the numbers by name.
    left_out : sequence of str
        Numbers or words that are not used.

    Returns
    -------
    list of tuple
        The columns of a number with its knots, or those of a word with None.
    """
    return [
        (members, None if "=" in feature_names[members[0]] else knots_of(name, feature_names, knots))
        for name, members in _columns(feature_names).items()
        if name not in left_out
    ]


def knots_of(name: str, feature_names: Sequence[str], knots: Mapping[str, Knots]) -> Knots:
    """Return the knots of a number.

    Parameters
    ----------
    name : str
        The number.
    feature_names : sequence of str
        All columns.
    knots : mapping of str to Knots
        Knots of the numbers by name.

    Returns
    -------
    Knots
        Its own; those of an indicator, if it tells where another number is missing; else even ones.
    """
    tells = name.endswith(MISSING) and name.removesuffix(MISSING) in feature_names
    return knots.get(name, INDICATOR if tells else EVEN)


def column_count(feature_names: Sequence[str]) -> int:
    """Count the columns of the table that the features come from.

    Parameters
    ----------
    feature_names : sequence of str
        Names of the columns.

    Returns
    -------
    int
        The number of columns. The indicators of a word count as one, since at most one of them is 1.
    """
    return len(_columns(feature_names))


def _columns(feature_names: Sequence[str]) -> dict[str, list[int]]:
    """Return the columns of every number and of every word."""
    found: dict[str, list[int]] = {}
    for index, name in enumerate(feature_names):
        found.setdefault(name.partition("=")[0], []).append(index)
    return found


def _encode_number(scaled: np.ndarray, name: str, knots: Knots) -> tuple[np.ndarray, list[str]]:
    values = knots.low + (knots.high - knots.low) * scaled
    if knots.logarithmic:
        shape = hats(np.log(np.maximum(values, knots.points[0])), np.log(knots.points).tolist())
    else:
        shape = hats(values, knots.points)
    names = [f"{name} near {point:g}" for point in knots.points]
    if not knots.zero_apart:
        return shape, names
    there = (values > 0)[:, None].astype(float)
    return np.concatenate([there, there * shape], axis=1), [f"{name} above 0", *names]


def _cross(one: tuple[np.ndarray, list[str]], other: tuple[np.ndarray, list[str]]) -> tuple[np.ndarray, list[str]]:
    product = one[0][:, :, None] * other[0][:, None, :]
    return product.reshape(len(product), -1), [f"{a} and {b}" for a in one[1] for b in other[1]]
