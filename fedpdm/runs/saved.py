"""The model of a finished run, ready for new rows."""

__all__ = ["SavedModel", "load_model", "plain_cell"]

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpdm.config import Config
from fedpdm.data.encoding import as_words
from fedpdm.data.made_up import made_up_rows
from fedpdm.data.piecewise import column_count
from fedpdm.data.prepare import prepare_rows
from fedpdm.data.rows import encode_rows
from fedpdm.data.schema import Schema, Target, read_schema
from fedpdm.data.survival import band_places
from fedpdm.data.tables import Table
from fedpdm.errors import ConfigError, UserError
from fedpdm.metrics import predicted
from fedpdm.problem import Link
from fedpdm.problem.inference import Intervals
from fedpdm.problem.refit import refit, second_moment
from fedpdm.problem.survival import restricted_mean
from fedpdm.runs.folder import INTERVALS, REMEDY, RunFolder
from fedpdm.runs.integrity import read_arrays, require_unchanged
from fedpdm.setup.build import loss_factory

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a cell that begins with one of them is a formula to some spreadsheet


class SavedModel(NamedTuple):
    """Weights, and everything that turns a row of a table into a class.

    Attributes
    ----------
    weights : ndarray
        [classes, features].
    class_names, feature_names : tuple of str
        Names of the rows and columns of the weights; features after the map of the settings.
    config : Config
        The settings of the run, which name that map.
    schema : Schema or None
        The columns of the user's own table.
    columns_known : bool
        False for a deployment whose server has no schema: then the model takes no rows of a table.
    threshold : float or None
        Two classes: the probability from which the second one is predicted; None: the most likely class.
    intervals : Intervals or None
        Intervals of the coefficients; None: the run kept none.
    """

    weights: np.ndarray
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    config: Config
    schema: Schema | None
    columns_known: bool = True
    threshold: float | None = None
    intervals: Intervals | None = None

    def require_columns(self) -> None:
        """Refuse a model whose columns are unknown."""
        if not self.columns_known:
            raise UserError(
                "The server of this run does not know the columns of its clients' rows, so the model takes no table: "
                "train again with the public schema of the rows. `fedpdm export --format csv` writes the weights."
            )

    def features(self, table: Table) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return the rows as the model sees them, and notes on values that did not fit."""
        self.require_columns()
        encoded, names, notes = encode_rows(self.config.data.name, self.schema, table)
        return prepare_rows(self.config, encoded, names), notes

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return [rows, classes] probabilities; the most likely class has the largest score."""
        return self.link().apply(features @ self.weights.T)

    @property
    def target(self) -> Target | None:
        """The bounds of a label that is a number; None: the label is a class."""
        return self.schema.target if self.schema else None

    def numbers(self, features: np.ndarray) -> np.ndarray:
        """[rows] predicted numbers, in the label's units."""
        assert self.target is not None, "the label is a class"
        if self.target.event:
            return self._times(features, self.target)
        return self.target.restore(self.link().apply(features @ self.weights.T)[:, 0])

    def _times(self, features: np.ndarray, target: Target) -> np.ndarray:
        """[rows] expected times to the event, or to the horizon if that comes first."""
        assert self.schema is not None
        places = band_places(self.schema.label, self.feature_names)
        unit = coefficients(np.ones(1), self.config.data.scaling, self.feature_names)[0]
        effects = np.concatenate([[0.0], unit * self.weights[0, places].astype(np.float64)])
        hazards = np.exp((features @ self.weights[0])[:, None] + effects)
        return restricted_mean(hazards) * target.high / target.bands

    def link(self) -> Link:
        """The loss's link from scores to probabilities."""
        loss = loss_factory(self.config)()
        if loss.link is None:
            raise UserError(f"The loss {loss.name!r} has no link from scores to predictions: give its Loss a `link`.")
        return loss.link

    def thinned(self, keep: float) -> "SavedModel":
        """Return the model with fewer weights, refitted on made-up rows (`fedpdm.problem.refit`): it costs no privacy.

        Parameters
        ----------
        keep : float
            Below 1: the share of all weights that may stay; from 1 on: their number.

        Returns
        -------
        SavedModel
            The smaller model.
        """
        self.require_columns()
        size = self.weights.size
        count = max(1, round(keep * size)) if keep < 1 else int(keep)
        if not (keep > 0 and (keep < 1 or keep == count)):
            raise ConfigError(f"Expected --weights {keep:g} to be a share between 0 and 1, or a whole number of weights.")
        rows, names = made_up_rows(self.config.data.name, self.schema)
        moment = second_moment(prepare_rows(self.config, rows, names))
        return self._replace(weights=refit(self.weights, moment, count))

    def coefficients(self) -> np.ndarray:
        """See `coefficients`; of a number they are in its own units (`in_units`)."""
        found = coefficients(self.weights, self.config.data.scaling, self.feature_names)
        return in_units(found, self.feature_names, self.target, self.link().name) if self.target else found

    def predictions_csv(self, table: Table, keep: Sequence[str] = ()) -> tuple[str, tuple[str, ...]]:
        """Return a line per row (the columns to keep; the predicted number, or class and probabilities), and notes."""
        features, notes = self.features(table)
        kept = [as_words(table.column(name)).fill_null("").to_list() for name in keep]
        if self.target:
            values = self.numbers(features)
            lines = [[*(column[place] for column in kept), f"{value:.6g}"] for place, value in enumerate(values)]
            return _csv([[*keep, "predicted"], *lines]), notes
        shares = self.probabilities(features)
        places = predicted(shares, self.threshold)
        header = [*keep, "predicted", *(f"probability {name}" for name in self.class_names)]
        lines = [
            [*(column[place] for column in kept), self.class_names[places[place]], *(f"{share:.6g}" for share in row)]
            for place, row in enumerate(shares)
        ]
        return _csv([header, *lines]), notes

    def coefficients_csv(self) -> str:
        """Return a line per feature, with a column per class."""
        lines = [[name, *map(repr, row)] for name, row in zip(self.feature_names, self.coefficients().T.tolist(), strict=True)]
        return _csv([["feature", *self.class_names], *lines])

    def intervals_csv(self, level: float) -> str:
        """A line per feature: the estimate, the ends of its interval, and the p-value; empty cells where there are none."""
        found = self.intervals_in_units()
        low, high = found.ends(level)
        columns = [column.tolist() for column in (found.estimate, low, high, found.p_values())]
        lines = [
            [name, *("" if value != value else f"{value:.6g}" for value in row)]
            for name, *row in zip(self.feature_names, *columns, strict=True)
        ]
        return _csv([["feature", "estimate", "low", "high", "p"], *lines])

    def intervals_in_units(self) -> Intervals:
        """The intervals of `coefficients`, in the label's own units; with two classes of the second one against the first."""
        if self.intervals is None:
            raise UserError("This run kept no intervals: run again with --set metrics.intervals=true.")
        link = self.link().name if self.target else ""
        return scaled_intervals(self.intervals, self.config.data.scaling, self.feature_names, self.target, link)


def scaled_intervals(
    found: Intervals, scaling: str, feature_names: Sequence[str], target: Target | None, link: str
) -> Intervals:
    """Intervals of the coefficients that `coefficients` and `in_units` give."""
    factor = coefficients(np.ones(1), scaling, feature_names)[0]
    estimate = factor * found.estimate
    if target:
        estimate = in_units(estimate[None], feature_names, target, link)[0]
        factor = factor if link == "log" else factor * (target.high - target.low)
    return Intervals(estimate, factor**2 * found.covariance, found.freedom)


def coefficients(weights: np.ndarray, scaling: str, feature_names: Sequence[str]) -> np.ndarray:
    """Return [classes, features] for features in [0, 1] if the map only divides them; else for the model's own features."""
    return weights / column_count(feature_names) ** 0.5 if scaling == "bounded" else weights


def in_units(weights: np.ndarray, feature_names: Sequence[str], target: Target, link: str) -> np.ndarray:
    """The coefficients [1, features] of a number in its own units: those of the prediction, or of its logarithm.

    A prediction is low + (high - low) times the score, or high times the exponential of the score if the link is "log": then
    the bias alone changes, by the logarithm of high. Of a time they are those of the logarithm of the hazard.

    Parameters
    ----------
    weights : ndarray
        [1, features] coefficients of the label as it is learnt, in [0, 1].
    feature_names : sequence of str
        The last one is "bias" if there is one, which takes up a label that does not begin at 0.
    target : Target
        The label's bounds.
    link : str
        The name of the loss's link.
    """
    found = np.array(weights, np.float64)
    found = found if link == "log" else found * (target.high - target.low)
    if feature_names[-1] == "bias":
        found[:, -1] += target.log_unit if link == "log" else target.low
    return found


def load_model(run: Path, averaged: bool = False) -> SavedModel:
    """Load the model of a finished run.

    Parameters
    ----------
    run : Path
        The run folder.
    averaged : bool
        The average over the tail of the rounds; else the model that the settings release.

    Returns
    -------
    SavedModel
        The model.

    Raises
    ------
    UserError
        If the folder holds no finished run.
    """
    folder = RunFolder(run)
    if not folder.manifest_path.is_file():
        raise UserError(f"{run} holds no run (there is no manifest.json): give the folder that `fedpdm run` named.")
    if not folder.model_path.is_file():
        raise UserError(f"The run in {run} is not finished, so it has no model: continue it with `fedpdm run --resume {run}`.")
    require_unchanged(run)
    config = folder.config()
    arrays, about = read_arrays(folder.model_path, REMEDY)
    averaged = averaged or config.metrics.released == "averaged"
    weights = arrays.get("averaged_model" if averaged else "model")
    if weights is None:
        raise UserError(f"{folder.model_path} is broken (it holds no model): {REMEDY}.")
    kept = [arrays[name] for name in (INTERVALS + "estimate", INTERVALS + "error") if name in arrays]
    if "feature_names" not in about:
        raise UserError(f"{folder.model_path} is of an older version, without the names of its features: run again.")
    schema = read_schema(folder.schema_path) if folder.schema_path.is_file() else None
    names = tuple(about["class_names"]), tuple(about["feature_names"])
    threshold = (about.get("thresholds") or (None, None))[averaged]
    found = Intervals(kept[0], np.diag(kept[1] ** 2), about["intervals"]["freedom"]) if kept else None
    return SavedModel(weights, *names, config, schema, about["data"] is not None, threshold, found)


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[plain_cell(cell) for cell in row] for row in rows])
    return text.getvalue()


def plain_cell(cell: str) -> str:
    """Put an apostrophe before a cell that a spreadsheet would run as a formula; numbers stay as they are.

    Parameters
    ----------
    cell : str
        The text of the cell.

    Returns
    -------
    str
        Text that a spreadsheet shows and does not run.

    Examples
    --------
    >>> plain_cell("=cmd()"), plain_cell("-0.5"), plain_cell("age")
    ("'=cmd()", '-0.5', 'age')
    """
    if not cell.startswith(FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell
