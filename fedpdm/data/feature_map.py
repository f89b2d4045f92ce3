"""A public map of one example: its type, a map from your own function, and the check before private rows are mapped."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedpdm.data.datasets import Dataset
from fedpdm.data.feature_cache import content_key, remember
from fedpdm.data.scaling import BIAS
from fedpdm.errors import ConfigError

__all__ = ["VERSION", "FeatureMap", "check_alone", "check_one_example_at_a_time", "feature_map"]

ONE_EXAMPLE = "one example"
VERSION = 2  # part of the cache's key: raise it whenever the numbers of a map change
PART = 1024  # examples between two looks at the clock
EVERY = 10  # seconds between two notices
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
    why : str
        Why it is public.
    before : callable
        Names the long work that comes before the first example, from the columns without the bias; empty if there is none.
    keep : int
        Use this many first columns alone, scaled to norm 1 again. The cache has all of them, for every number.
    """

    name: str
    sentence: str
    encode: Callable[[np.ndarray, Sequence[str]], np.ndarray]
    columns: Callable[[Sequence[str]], Sequence[str]]
    depends_on: str = ONE_EXAMPLE
    unit: bool = True
    key: tuple[object, ...] | None = None
    why: str = "It is a fixed formula of one example: nothing in it was fitted to any data."
    before: Callable[[Sequence[str]], str] = lambda names: ""
    keep: int | None = None

    def rows(self, features: np.ndarray, feature_names: Sequence[str]) -> np.ndarray:
        """Return the features of these examples, each by itself."""
        return self._first(self._whole(features, feature_names))

    def _first(self, rows: np.ndarray) -> np.ndarray:
        if self.keep is None or self.keep >= rows.shape[1] - 1:
            return rows
        return rows_at_norm_one(rows[:, : self.keep], bias=True)

    def _whole(self, features: np.ndarray, feature_names: Sequence[str]) -> np.ndarray:
        if not self.unit:
            return self.encode(features, feature_names)
        inputs = len(without_bias(feature_names))
        return rows_at_norm_one(self.encode(features[:, :inputs], feature_names[:inputs]), bias=True)

    def names(self, feature_names: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns after the map."""
        return (*self.columns(without_bias(feature_names)), "bias") if self.unit else tuple(feature_names)

    def apply(self, dataset: Dataset, say: Callable[[str], None] | None = None) -> Dataset:
        """Return the data set with its training and its test examples mapped; a slow map reports its progress."""
        names = dataset.feature_names

        def mapped(features: np.ndarray) -> np.ndarray:
            if self.key is None:
                return self.rows(features, names)
            key = content_key(features, self.name, self.key, names, VERSION)
            return self._first(remember(key, lambda: self._in_parts(features, names, say)))

        return dataset._replace(
            features=mapped(dataset.features), test_features=mapped(dataset.test_features), feature_names=self.names(names)
        )

    def _in_parts(self, features: np.ndarray, names: Sequence[str], say: Callable[[str], None] | None) -> np.ndarray:
        """Map the rows part after part, and say every few seconds how far it is."""
        parts, said = [], time.monotonic()
        for start in range(0, max(len(features), 1), PART):
            parts.append(self._whole(features[start : start + PART], names))
            if say is not None and time.monotonic() - said > EVERY:
                said = time.monotonic()
                say(f"features={self.name}: {min(start + PART, len(features))} of {len(features)} examples")
        return np.concatenate(parts) if len(parts) > 1 else parts[0]


def without_bias(feature_names: Sequence[str]) -> Sequence[str]:
    return feature_names[:-1] if feature_names[-1] == "bias" else feature_names


def rows_at_norm_one(columns: np.ndarray, bias: bool) -> np.ndarray:
    """Scale rows to norm 1, and add the bias column."""
    out = np.full((len(columns), columns.shape[1] + bias), BIAS, np.float32)
    norms = np.sqrt(np.einsum("ij,ij->i", columns, columns))  # without a copy: the columns may take a gigabyte
    np.divide(columns, np.maximum(norms, 1e-12)[:, None], out=out[:, : columns.shape[1]], casting="same_kind")
    return out


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
    check_alone(f"feature map {chosen.name!r}", lambda rows: chosen.rows(rows, feature_names), examples)


def check_alone(what: str, apply: Callable[[np.ndarray], np.ndarray], examples: np.ndarray) -> None:
    """Refuse a function of rows that gives a row other numbers alone, or in another order, than in a batch.

    Parameters
    ----------
    what : str
        The function in the error.
    apply : callable
        `[rows, n] -> [rows, m]`.
    examples : ndarray
        [rows, n], on which it is tried.

    Raises
    ------
    ConfigError
        If a row's numbers depend on other rows.
    """
    together, turned = apply(examples), apply(examples[::-1])[::-1]
    alone = np.concatenate([apply(examples[row : row + 1]) for row in range(len(examples))])
    for other, how in ((turned, "in another order"), (alone, "alone")):
        gap = float(np.abs(together - other).max())
        if not gap <= TOLERANCE:
            raise ConfigError(
                f"{what} gives an example other features {how} than in a batch (they differ by {gap:.3g}, "
                f"allowed {TOLERANCE:g}): it uses other examples, which the sound mechanism does not allow. Let it use one "
                "example at a time (docs/features.md, your own map)"
            )
