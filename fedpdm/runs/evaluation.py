"""The test figures of a run's models, and the threshold that its predictions use."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedpdm.metrics import BALANCED, choose_threshold, evaluate
from fedpdm.problem.objective import Problem

__all__ = ["evaluation", "predicted_shares"]

Rows = tuple[Any, Any]  # features [rows, n] and labels [rows]


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
        [rows, classes].
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
    return evaluate(shares, np.asarray(test[1]), class_names, threshold if isinstance(threshold, float) else None)
