"""The model of a finished run, ready for new rows."""

__all__ = ["SavedModel", "load_model", "plain_cell"]

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedpdm.config import Config
from fedpdm.data.directions import Directions
from fedpdm.data.encoding import as_words
from fedpdm.data.piecewise import column_count
from fedpdm.data.prepare import prepare_rows
from fedpdm.data.rows import encode_rows
from fedpdm.data.schema import Number, Schema, Target, read_schema
from fedpdm.data.standard import Standard
from fedpdm.data.survival import band_places
from fedpdm.data.tables import Table
from fedpdm.errors import UserError
from fedpdm.metrics import predicted
from fedpdm.privacy.first_release import Map
from fedpdm.problem import Link
from fedpdm.problem.inference import Intervals
from fedpdm.problem.survival import restricted_mean
from fedpdm.runs.folder import INTERVALS, REMEDY, STANDARD, RunFolder
from fedpdm.runs.integrity import read_arrays, require_unchanged
from fedpdm.runs.thin import Thinner
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
    standard : Standard, Directions or None
        What features were standardised by in training, or projected onto; the weights are for the features before it.
    interval_note : str
        Why all, or some, coefficients have no interval; empty if all have one, or if the run was not asked for them.
    """

    weights: np.ndarray
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    config: Config
    schema: Schema | None
    columns_known: bool = True
    threshold: float | None = None
    intervals: Intervals | None = None
    standard: Map | None = None
    interval_note: str = ""

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
        found = prepare_rows(self.config, encoded, names)
        if found.shape[1] != self.weights.shape[1]:
            raise UserError(
                f"The model has {self.weights.shape[1]} features, and its map gives {found.shape[1]}: it was trained with "
                "another release of fedpdm. Use that release, or train again."
            )
        return found, notes

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
        hazards = np.exp((features @ self.weights[0])[:, None] + self.band_effects())
        return restricted_mean(hazards) * target.high / target.bands

    def band_effects(self) -> np.ndarray:
        """[bands] what a band adds to the logarithm of the hazard; 0 for the first."""
        assert self.schema is not None, "a time has a schema"
        places = band_places(self.schema.label, self.feature_names)
        unit = coefficients(np.ones(1), self.config.data.scaling, self.feature_names)[0]
        return np.concatenate([[0.0], unit * self.weights[0, places].astype(np.float64)])

    def link(self) -> Link:
        """The loss's link from scores to probabilities."""
        loss = loss_factory(self.config)()
        if loss.link is None:
            raise UserError(f"The loss {loss.name!r} has no link from scores to predictions: give its Loss a `link`.")
        return loss.link

    def thinned(self, keep: float) -> "SavedModel":
        """Return the model with fewer weights, refitted on made-up rows (`fedpdm.runs.thin`): it costs no privacy.

        Parameters
        ----------
        keep : float
            Below 1: the share that may stay; from 1 on: the number. Of what is in problem.sparsity_by of the settings.

        Returns
        -------
        SavedModel
            The smaller model.
        """
        standard, names = self.standard, self.feature_names
        thinner = Thinner(self.config, names, len(self.weights), self.schema, self.columns_known, standard)
        count = thinner.count(keep, "--weights")
        if not isinstance(standard, Standard):
            return self._replace(weights=thinner.thin(self.weights, count))
        return self._replace(weights=standard.fold(thinner.thin(standard.unfold(self.weights), count)))

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
        """A line per feature: the estimate, the ends of its interval, the p-value, and the change of the column that it is for.

        Cells are empty where there is none.
        """
        found = self.intervals_in_units()
        low, high = found.ends(level)
        per = np.tile(self.column_changes(), len(found.estimate) // len(self.feature_names))
        columns = [column.tolist() for column in (found.estimate, low, high, found.p_values(), per)]
        lines = [
            [name, *("" if value != value else f"{value:.6g}" for value in row)]
            for name, *row in zip(interval_names(self.class_names, self.feature_names), *columns, strict=True)
        ]
        return _csv([["feature", "estimate", "low", "high", "p", "per"], *lines])

    def column_changes(self) -> np.ndarray:
        """[features] the change of a column, in its own units, that a coefficient is for; NaN if a map or scaling hides it.

        A number goes from its lower to its upper bound, a level of a word from absent to present.
        """
        if self.schema is None or self.config.data.features != "raw" or self.config.data.scaling not in ("none", "bounded"):
            return np.full(len(self.feature_names), np.nan)
        ranges = {
            name.replace("=", ":"): column.high - column.low
            for name, column in self.schema.columns.items()
            if isinstance(column, Number)
        }
        return np.array([ranges.get(name, 1.0) for name in self.feature_names])

    def intervals_in_units(self) -> Intervals:
        """The intervals of `coefficients`, in the label's own units; with two classes of the second one against the first."""
        if self.intervals is None:
            raise UserError(self.interval_note or "This run kept no intervals: run again with --set metrics.intervals=true.")
        link = self.link().name if self.target else ""
        return scaled_intervals(self.intervals, self.config.data.scaling, self.feature_names, self.target, link)


def interval_names(class_names: Sequence[str], feature_names: Sequence[str]) -> list[str]:
    """Names of the coefficients that have intervals: of several classes, those of every class against the first."""
    if len(class_names) < 3:
        return list(feature_names)
    return [f"{name}: {feature}" for name in class_names[1:] for feature in feature_names]


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
    by = [arrays.get(STANDARD + key) for key in ("centre", "scale", "moment")]
    standard = Standard(by[0], by[1], names[1][-1] == "bias") if by[0] is not None and by[1] is not None else None
    standard = Directions(np.zeros((0, 0), np.float32), by[2]) if by[2] is not None else standard
    said = about.get("intervals") or {}
    note = said.get("reason") or said.get("missing") or ""
    return SavedModel(weights, *names, config, schema, about["data"] is not None, threshold, found, standard, note)


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
