"""Fewer weights of a finished model (`problem.sparsity`), and the path from all weights to few.

Both are post-processing of a released model with public knowledge, so they cost no privacy.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from fedpdm.config import Config
from fedpdm.data.directions import Directions
from fedpdm.data.made_up import made_up_rows
from fedpdm.data.names import column_among, column_of, columns_of
from fedpdm.data.prepare import prepare_rows
from fedpdm.data.rows import adult_schema
from fedpdm.data.schema import Schema
from fedpdm.errors import ConfigError
from fedpdm.privacy.first_release import Map
from fedpdm.problem.refit import ALWAYS, STEPS, refit_path, second_moment, with_ridge

__all__ = ["UNITS", "Thinner", "path_figures"]

FEW = (1, 2, 3, 4, 5, 7, 10, 14, 20)  # small numbers that every path has too
NAMED = 30  # features that a point of the path names, at most
UNITS = {"weight": "weights", "class": "weights of every class", "feature": "features", "column": "columns"}
FIGURES = {"test_accuracy": "test accuracy", "test_loss": "test loss", "auc": "AUC"}


def path_figures(points: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the figures that a path has, with the words for them.

    Parameters
    ----------
    points : sequence of dict
        The points of `Thinner.points`, as in summary.json.

    Returns
    -------
    dict
        Key and title; none if there were no test rows.
    """
    return {key: title for key, title in FIGURES.items() if any(point.get(key) is not None for point in points)}


class Thinner:
    """Makes smaller models of a run: single weights, the same number for every class, whole features or whole columns.

    The bias always stays. It counts among weights, and neither among features nor among columns.

    Parameters
    ----------
    config : Config
        The settings; `problem.sparsity_by` says what is counted.
    feature_names : sequence of str
        The columns of the model.
    classes : int
        Its rows.
    schema : Schema or None
        The columns of a table.
    columns_known : bool
        Whether schema or data set define the rows. If not, all features count as equally large and uncorrelated.
    standard : Standard, Directions or None
        Standardised features count as equally large and uncorrelated. A private basis has a released second moment.
    """

    def __init__(
        self,
        config: Config,
        feature_names: Sequence[str],
        classes: int,
        schema: Schema | None = None,
        columns_known: bool = True,
        standard: Map | None = None,
    ) -> None:
        self._config, self._schema, self._known, self._standard = config, schema, columns_known, standard
        self.feature_names, self.unit = tuple(feature_names), config.problem.sparsity_by
        self._softmax = config.problem.loss == "softmax"
        each = self._columns() if self.unit == "column" else range(len(feature_names))
        places: dict[str | int, int] = {}
        named = zip(feature_names, each, strict=True)
        own = np.array([ALWAYS if name == "bias" else places.setdefault(key, len(places)) for name, key in named])
        groups, biases = np.tile(own, (classes, 1)), int((own == ALWAYS).sum())
        self._fixed, more = (biases, biases) if self.unit == "class" else (0, 0)
        if self.unit == "weight":
            groups = np.where(own == ALWAYS, ALWAYS, own + len(places) * np.arange(classes)[:, None])
            self._fixed, more = biases * (1 if self._softmax and classes == 2 else classes), biases * classes
        self._groups, self.total = groups, int(groups.max()) + 1 + more

    def _columns(self) -> list[str]:
        """The column of every feature."""
        table = adult_schema() if self._schema is None and self._config.data.name == "adult" else self._schema
        if table is None:
            return [column_of(name) for name in self.feature_names]
        known = columns_of(table) | {"bias"}
        found = [column_among(name, known) for name in self.feature_names]
        if None in found:
            mixed = self.feature_names[found.index(None)]
            raise ConfigError(
                f"problem.sparsity_by=column: the feature {mixed!r} does not come from one column of the table, so no column "
                "can leave: use problem.sparsity_by=feature or weight, or a map by columns (data.features=piecewise or raw, "
                "data.basis=none)."
            )
        return [column for column in found if column is not None]

    @cached_property
    def moment(self) -> np.ndarray:
        """The second moment in whose norm scores are kept: a released one, that of made-up rows, or that of equal features."""
        if isinstance(self._standard, Directions):
            return with_ridge(self._standard.moment.astype(np.float64))
        if self._standard is not None or not self._known:
            return np.eye(len(self.feature_names))
        rows, inputs = made_up_rows(self._config.data.name, self._schema)
        seen = prepare_rows(self._config, rows, inputs)
        # a federation that was given under the name of a known data set may have other columns
        return second_moment(seen) if seen.shape[1] == len(self.feature_names) else np.eye(len(self.feature_names))

    def count(self, keep: float, name: str = "problem.sparsity") -> int:
        """Return the number that a share (below 1) or a number stands for; `name` is for the error."""
        count = max(1, round(keep * self.total)) if keep < 1 else int(keep)
        if not (keep > 0 and (keep < 1 or keep == count) and self._fixed < count <= self.total):
            raise ConfigError(
                f"{name}={keep:g}: expected a share between 0 and 1, or a whole number, that leaves {self._fixed + 1} to "
                f"{self.total} {UNITS[self.unit]}."
            )
        return count

    def certain(self, noise: np.ndarray) -> int:
        """Return how many weights noise alone cannot explain, the biases included.

        Parameters
        ----------
        noise : ndarray
            Not zero where it could (`fedpdm.engines.simulation.steadiness`); of two classes one row.

        Returns
        -------
        int
            The number; at least one weight beside the biases.
        """
        inputs = [place for place, name in enumerate(self.feature_names) if name != "bias"]
        return self._fixed + max(1, int((noise[:, inputs] == 0).sum()))

    def thin(self, model: np.ndarray, count: int) -> np.ndarray:
        """Return the model with this number of weights, features or columns."""
        return self.path(model, [count])[count]

    def path(self, model: np.ndarray, counts: Iterable[int]) -> dict[int, np.ndarray]:
        """Return the models with these numbers of weights, features or columns; the larger ones of `steps` lie on the way."""
        start, wanted = _plainest(model) if self._softmax else model, sorted(counts)
        most, biases = int(self._groups.max()) + 1, int(np.count_nonzero(start[self._groups == ALWAYS]))
        fixed = min(biases, self._fixed)
        inner = {c: min(c - fixed, most) for c in {*wanted, *(c for c in self.steps() if c > wanted[0])}}
        if self.unit == "class":
            rows = [refit_path(row[None], self.moment, list(inner.values()), self._groups[:1]) for row in start]
            return {count: np.concatenate([found[inner[count]] for found in rows]) for count in wanted}
        found = refit_path(start, self.moment, list(inner.values()), self._groups)
        return {count: found[inner[count]] for count in wanted}

    def steps(self) -> set[int]:
        """The numbers of a path, without all."""
        shares = (round(share * self.total) for share in STEPS)
        return {c for c in (*(self._fixed + few for few in FEW), *shares) if self._fixed < c < self.total}

    def points(
        self, model: np.ndarray, measure: Callable[[np.ndarray], dict[str, Any]], count: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the path for a summary: per point the number kept, weights, features (or columns, named if few), and figures.

        It has the point `count` too. A number that takes nothing away from the next larger model has no point.
        """
        counts = sorted(self.steps() | ({count} if count else set()), reverse=True)
        smaller, models, last = self.path(model, counts), {self.total: model}, np.count_nonzero(model)
        for each in (c for c in counts if c != self.total):
            if (left := np.count_nonzero(smaller[each])) != last or each == count:
                models[each], last = smaller[each], left
        return [self._point(c, kept) | measure(kept) for c, kept in models.items()]

    def _point(self, count: int, model: np.ndarray) -> dict[str, Any]:
        strength = np.abs(model).max(axis=0) * np.sqrt(np.diag(self.moment))
        order = np.argsort(-strength, kind="stable")
        names = [self.feature_names[place] for place in order if strength[place] > 0 and self.feature_names[place] != "bias"]
        point = {"kept": count, "weights": int(np.count_nonzero(model)), "features": len(names)}
        if self.unit == "column":
            column = dict(zip(self.feature_names, self._columns(), strict=True))
            names = list(dict.fromkeys(column[name] for name in names))
        return point | {"names": names if len(names) <= NAMED else None}


def _plainest(model: np.ndarray) -> np.ndarray:
    """Return a model with the same softmax probabilities that needs fewer weights.

    With two classes only the difference of their rows counts, so the first row can be zero. With more, what all rows have in
    common does not count; in a private model it is noise. A feature that some class does not use stays as it is.
    """
    if len(model) == 2:
        return model - model[:1]
    return np.where((model != 0).all(axis=0), model - model.mean(axis=0, keepdims=True), model)
