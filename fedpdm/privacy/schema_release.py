"""A schema from private rows under differential privacy: noised histograms, and the values that stand out of the noise."""

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedpdm.data.encoding import as_words, known_numbers
from fedpdm.data.images import is_image_column
from fedpdm.data.schema import Category, Column, Cost, Ignored, Number, Schema, some
from fedpdm.data.schema_inference import NAMELESS, NAMES_OF_IDS, Inferred, in_order
from fedpdm.data.tables import Table
from fedpdm.errors import ConfigError, DataError, require_extra

__all__ = ["release_schema", "Cells", "cells_of", "Thresholds", "thresholds_for"]

LEAST, MOST = -10, 40  # the grid of numbers: 0, and +-[2^k, 2^(k+1)] for k from LEAST to MOST
SIDE = MOST - LEAST + 1
MISSING = 2 * SIDE + 1  # the cell after those of the grid
MOST_FEATURES = 100_000  # columns of a LibSVM file
FEW_INTERVALS = 2  # with words among them, numbers in so few intervals are levels too: 1, 2-10, more
FALSE_ALARM = 1e-4  # chance that any empty cell of the grid passes; a matter of usefulness, not of privacy

NoiseFn = Callable[[list[int], float], list[int]]


class Cells(NamedTuple):
    """A column as counts: every row is in one cell."""

    grid: np.ndarray  # [MISSING + 1]: numbers below 0, 0, above 0, and missing values; known beforehand
    words: Counter[str]  # values that are not numbers; the set of words is private


class Thresholds(NamedTuple):
    """The thresholds for the counts and the scale of their noise; all of it is public."""

    scale: float
    grid: float
    word: float


def release_schema(
    table: Table,
    label: str,
    client: str | None,
    epsilon: float,
    delta: float,
    noise: NoiseFn | None = None,
    features: int | None = None,
) -> Inferred:
    """Infer bounds, levels and classes from the rows with discrete Laplace noise.

    Every row is in one cell of every column: missing, one of 103 intervals of numbers between powers of two, or its word. All
    counts of the grid, and those of the words that occur, get noise of scale m/epsilon for m columns (all values of the label
    are words). The schema holds the words above a threshold of 1 + ceil((m/epsilon) ln(m/delta)) rows.

    Formal guarantee
    ----------------
    Relation: add/remove one row; unit: one row of the table; adversary: anyone who sees the schema. The schema is
    (epsilon, delta)-DP, for delta <= 1 - exp(-epsilon/m), which is checked: Theorem D in docs/privacy/proofs.md. Names of
    columns are public. Each call is a separate release. The noise is exact, from the operating system's randomness.

    Parameters
    ----------
    table, label, client
        As in `fedpdm.data.infer_schema`.
    epsilon, delta : float
        The budget of this release.
    noise : callable, optional
        `(counts, scale) -> noised counts`, for tests.
    features : int, optional
        For a LibSVM file: the public number of its columns x1, x2, ...; those that occur depend on the rows.

    Returns
    -------
    Inferred
        The schema with its cost, and notes.

    References
    ----------
    Korolova, Kenthapadi, Mishra, Ntoulas: "Releasing search queries and clicks privately", WWW 2009, for the thresholds.
    """
    table.column(label, "label column")
    if client is not None:
        table.column(client, "client column")
    names = [name for name in _public_names(table, label, features) if name != client]
    if images := [name for name in names if name in table.columns and is_image_column(table.columns[name])]:
        raise ConfigError(
            f"{table.name}: {images[0]!r} holds images, which have no private bounds: write the schema by hand, with "
            '`kind = "image"` and a shape, and the public classes.'
        )
    limits = thresholds_for(len(names), epsilon, delta)
    cells = {name: cells_of(table, name, as_label=name == label) for name in names}
    levels = {name: sorted(cells[name].words) for name in names}
    counts = [count for name in names for count in (*cells[name].grid.tolist(), *(cells[name].words[w] for w in levels[name]))]
    noised = iter((noise or _discrete_laplace)(counts, limits.scale))
    notes: list[str] = []
    columns: dict[str, Column] = {}
    classes: list[str] = []
    for name in names:
        grid = np.array([next(noised) for _ in range(MISSING + 1)])
        words = {word: count for word, count in ((word, next(noised)) for word in levels[name]) if count > limits.word}
        if name == label:
            classes = in_order(set(words))
        else:
            columns[name] = _column(name, grid, words, limits, notes)
    if len(classes) < 2 or all(isinstance(column, Ignored) for column in columns.values()):
        what = f"{len(classes)} classes of {label!r}" if len(classes) < 2 else "no column to learn from"
        raise DataError(
            f"{table.name}: the noise leaves {what} at epsilon={epsilon:g}. A word needs more than {limits.word:.0f} rows and "
            f"an interval of numbers {limits.grid:.0f}: spend more, or write the schema by hand"
        )
    notes.append(
        f"{label}: its classes are those that are clearly in more than {limits.word:.0f} rows; a run refuses rows of other "
        "classes, so add those that are known without the rows"
    )
    cost = Cost(epsilon=epsilon, delta=delta)
    return Inferred(Schema(label=label, classes=classes, client=client, columns=columns, cost=cost), tuple(notes))


def _public_names(table: Table, label: str, features: int | None) -> list[str]:
    """Return the columns' names; none of them may come from a row."""
    if not table.sparse:
        if features is not None:
            raise ConfigError(f"{table.name} names its columns itself: features={features} is for LibSVM files.")
        return list(table.columns)
    if features is None or not 1 <= features <= MOST_FEATURES:
        raise ConfigError(
            f"{table.name}: the columns of a LibSVM file depend on its rows, so their names would reveal something about them. "
            f"Give their public number (--features, from 1 to {MOST_FEATURES}), as known without the rows."
        )
    return [label, *(f"x{number}" for number in range(1, features + 1))]


def thresholds_for(columns: int, epsilon: float, delta: float) -> Thresholds:
    """Return scale and thresholds for a number of columns.

    Parameters
    ----------
    columns : int
        m, the label's column included.
    epsilon, delta : float
        The budget of the release.

    Returns
    -------
    Thresholds
        The public numbers of the release.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise ConfigError(f"Expected epsilon={epsilon:g} above 0 and delta={delta:g} in (0, 1).")
    if delta > -math.expm1(-epsilon / columns):
        raise ConfigError(f"Expected delta={delta:g} <= 1 - exp(-epsilon/{columns}) = {-math.expm1(-epsilon / columns):.3g}.")
    scale = math.nextafter(columns / epsilon, math.inf)
    return Thresholds(
        scale,
        grid=scale * math.log(columns * (MISSING + 1) / FALSE_ALARM),
        word=1 + math.ceil(scale * math.log(columns / delta)),
    )


def cells_of(table: Table, name: str, as_label: bool = False) -> Cells:
    """Count the cells of one column: every row adds 1 to one cell.

    Parameters
    ----------
    table, name
        The table and its column.
    as_label : bool
        Whether all values are words.

    Returns
    -------
    Cells
        The counts.
    """
    import polars as pl

    # The number comes from the row's own word, so it does not depend on whether the other rows are numbers too.
    found = as_words(table.column(name))
    numbers = known_numbers(found).cast(pl.Float64, strict=False).to_numpy().astype(np.float64)
    grid, words = np.zeros(MISSING + 1, np.int64), Counter[str]()
    for word, number in zip(found.to_list(), numbers.tolist(), strict=True):
        if word is None:
            grid[MISSING] += 1
        elif as_label or not math.isfinite(number):
            words[word] += 1
        else:
            grid[SIDE + _place(number)] += 1
    return Cells(grid, words)


def _place(number: float) -> int:
    """Return 0, or 1, 2, ... for the intervals above 0 by size, and -1, -2, ... for those below."""
    size = math.frexp(abs(number))[1] - 1  # floor of the logarithm to base 2, without rounding
    if number == 0 or size < LEAST:
        return 0
    place = min(size, MOST) - LEAST + 1
    return place if number > 0 else -place


def _edges(place: int) -> tuple[float, float]:
    if place == 0:
        return 0.0, 0.0
    low, high = 2.0 ** (abs(place) + LEAST - 1), 2.0 ** (abs(place) + LEAST)
    return (low, high) if place > 0 else (-high, -low)


def _column(name: str, grid: np.ndarray, words: dict[str, int], limits: Thresholds, notes: list[str]) -> Column:
    """Describe a column by its noised counts."""
    places = [int(place) - SIDE for place in np.flatnonzero(grid[:MISSING] > limits.grid)]
    numbers = sum(int(grid[SIDE + place]) for place in places)
    if words and (sum(words.values()) > numbers or len(places) <= FEW_INTERVALS):
        return Category(levels=in_order(set(words)))  # a number among them is none of the levels
    if words:
        found = some(sorted(words))
        notes.append(f"{name}: a number, but {found} is among its values, and a run refuses words: leave these cells empty")
    if places and NAMES_OF_IDS.search(name):
        notes.append(
            f"{name or NAMELESS}: ignored, because numbers in a column of this name look like ids; to keep it, write its bounds"
        )
        return Ignored()
    low, high = (_edges(min(places))[0], _edges(max(places))[1]) if places else (0.0, 0.0)
    if low < high:
        return Number(low=low, high=high, missing_column=bool(grid[MISSING] > limits.grid))
    notes.append(
        f"{name}: ignored, because no word is clearly in more than {limits.word:.0f} rows and no interval in {limits.grid:.0f}"
    )
    return Ignored()


def _discrete_laplace(counts: list[int], scale: float) -> list[int]:
    """Draw one exact sample of the discrete Laplace distribution around every count, from the operating system's randomness."""
    require_extra("opendp", "tables", "A schema with differential privacy")
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_laplace
    from opendp.metrics import l1_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    return make_laplace(vector_domain(atom_domain(T="i64")), l1_distance(T="i64"), scale=scale)(counts)
