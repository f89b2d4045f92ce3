"""The test figures of a run's models, and the threshold that its predictions use."""

from collections.abc import Sequence
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from fedpdm.data.schema import Schema, Target
from fedpdm.data.survival import band_places, gathered
from fedpdm.metrics import BALANCED, choose_threshold, evaluate, evaluate_numbers, evaluate_times
from fedpdm.metrics.classes import auc
from fedpdm.metrics.predictions import Predictions
from fedpdm.problem.objective import Problem
from fedpdm.problem.survival import restricted_mean

__all__ = ["Names", "auc_of", "evaluation", "figures_of", "number_evaluation", "predicted_shares", "time_evaluation"]

Rows = tuple[Any, Any]  # features [rows, n] and labels [rows]


class Names(Protocol):
    """Names of a model's rows and columns, and the schema of the table: of a `Federation`, or of a record."""

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def feature_names(self) -> tuple[str, ...]: ...

    @property
    def schema(self) -> Schema | None: ...


def figures_of(problem: Problem, model: np.ndarray, test: Rows, names: Names, *how: Any) -> dict[str, Any]:
    """Evaluate a model on test rows, by the kind of its label.

    Parameters
    ----------
    problem, model, test
        The problem, the model, and features and labels of test rows.
    names : Names
        Names of classes and features, and the schema.
    *how
        `threshold`, `validation` and `units` of `evaluation`, for classes.

    Returns
    -------
    dict
        The figures.
    """
    target = names.schema.target if names.schema else None
    if problem.loss.target == "time":
        assert names.schema is not None, "a time has a schema"
        assert target is not None, "a time has a horizon"
        return time_evaluation(problem, model, test, target, band_places(names.schema.label, names.feature_names))
    if problem.loss.target == "number":
        return number_evaluation(problem, model, test, target)
    return evaluation(problem, model, test, names.class_names, *how)


def predicted_shares(problem: Problem, model: np.ndarray, features: Any) -> np.ndarray:
    """Return the probabilities of a model.

    Parameters
    ----------
    problem : Problem
        Gives the loss and its link.
    model, features : ndarray
        The model, and [rows, n] features.

    Returns
    -------
    ndarray
        [rows, classes]; of a number [rows, 1], on the scale of training.
    """
    scores = np.asarray(problem.loss.scores(jnp.asarray(model), jnp.asarray(features)), np.float64)
    assert problem.loss.link is not None, f"{problem.loss.name} has no link"
    return problem.loss.link.apply(scores)


def evaluation(
    problem: Problem,
    model: np.ndarray,
    test: Rows,
    class_names: Sequence[str],
    threshold: float | str | None = None,
    validation: Rows | None = None,
    units: np.ndarray | None = None,
) -> dict[str, Any]:
    """Evaluate a model with `fedpdm.metrics.evaluate`.

    Parameters
    ----------
    problem, model
        The objective and the model.
    test : (features, labels)
        The test rows.
    class_names : sequence of str
        Names of the classes.
    threshold : float or str, optional
        metrics.threshold of the settings.
    validation : (features, labels), optional
        The rows on which a threshold is chosen, if it is a word.
    units : ndarray, optional
        Equal numbers for test rows of one person.

    Returns
    -------
    dict
        The figures.
    """
    if threshold == BALANCED:
        assert validation is not None, "a threshold needs rows that were set apart"
        features, labels = validation
        threshold = choose_threshold(predicted_shares(problem, model, features), np.asarray(labels))
    shares = predicted_shares(problem, model, test[0])
    cut = threshold if isinstance(threshold, float) else None
    return evaluate(shares, np.asarray(test[1]), class_names, cut, units)


def auc_of(problem: Problem, model: np.ndarray, test: Rows) -> float | None:
    """Return the AUC of a model on test rows.

    Parameters
    ----------
    problem, model, test
        The problem, the model, and features and labels of test rows.

    Returns
    -------
    float or None
        The AUC; None if the label is no class, the loss has no probabilities, or the rows do not define it.
    """
    if problem.loss.target != "classes" or problem.loss.link is None:
        return None
    return auc(Predictions(predicted_shares(problem, model, test[0]), np.asarray(test[1]))).value


def number_evaluation(problem: Problem, model: np.ndarray, test: Rows, target: Target | None) -> dict[str, Any]:
    """What `fedpdm.metrics.evaluate_numbers` says of a model, in the units of its label; None: as it learns them.

    Parameters
    ----------
    problem : Problem
        Gives the loss and its link.
    model : ndarray
        The model.
    test : tuple of ndarray
        Features and labels.
    target : Target or None
        The bounds of the label.

    Returns
    -------
    dict
        The figures.
    """
    bounds = target or Target(low=0, high=1)
    found = bounds.restore(predicted_shares(problem, model, test[0])[:, 0])
    return evaluate_numbers(found, bounds.restore(np.asarray(test[1])), problem.loss.metrics)


def time_evaluation(problem: Problem, model: np.ndarray, test: Rows, target: Target, places: Sequence[int]) -> dict[str, Any]:
    """What `fedpdm.metrics.evaluate_times` says of a model, from test rows of time bands.

    Parameters
    ----------
    problem, model, test
        The problem, a model [1, features], and the features and labels of test rows, as training sees them.
    target : Target
        The horizon and the number of bands.
    places : sequence of int
        The columns of the bands after the first.

    Returns
    -------
    dict
        The figures.
    """
    features, labels = np.asarray(test[0]), np.asarray(test[1])
    scores = np.asarray(problem.loss.scores(jnp.asarray(model), jnp.asarray(features)), np.float64)[:, 0]
    lowest = features[:, list(places)].min(axis=0) if places else np.zeros(0)
    first = np.asarray((features[:, list(places)] <= lowest).all(axis=1) if len(places) else np.ones(len(labels), bool))
    effect = np.asarray(model, np.float64)[0, list(places)] * (features[:, list(places)].max(axis=0) - lowest)
    hazards = np.exp(scores[first][:, None] + np.concatenate([[0.0], effect]))
    times, seen = gathered(labels, first)
    unit = target.high / target.bands
    return evaluate_times(restricted_mean(hazards) * unit, times * unit, seen)
