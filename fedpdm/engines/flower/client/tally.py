"""A model's quality on the rows that a node holds out: one vector of counts or sums, before any noise."""

import jax.numpy as jnp
import numpy as np

from fedpdm.data.piecewise import column_count
from fedpdm.data.survival import band_places
from fedpdm.engines.flower.client.slots import ClientExamples
from fedpdm.engines.flower.job import Job
from fedpdm.metrics import count, number_sums, time_counts, vector_of
from fedpdm.privacy.first_release import Map
from fedpdm.problem.losses import Loss
from fedpdm.problem.survival import restricted_mean

__all__ = ["tally"]

LARGEST_SCORE = 50.0  # of the logarithm of a hazard: beyond it nothing changes


def tally(job: Job, loss: Loss, model: np.ndarray, own: ClientExamples, standard: Map | None) -> np.ndarray:
    """The counts of classes, the sums of a number, or the counts of a time, on rows that are held out.

    One unit (a row, a person, a subject) moves it by at most `fedpdm.engines.flower.job_evaluation.tally_sensitivity`.

    Parameters
    ----------
    job, loss, model
        The job, its loss, and the model [m, d] that is evaluated.
    own : ClientExamples
        The node's examples.
    standard : Map or None
        By which features are centred and scaled, or projected.

    Returns
    -------
    ndarray
        The vector; its size depends on the job alone.
    """
    evaluation = job.evaluation
    assert evaluation is not None
    rows = own.held_out & own.filled
    features = own.features if standard is None else standard.apply_in_use(own.features)
    scores = np.nan_to_num(np.asarray(loss.scores(jnp.asarray(model), jnp.asarray(features)), np.float64))
    if job.kind == "time":
        return _of_times(job, model, own, scores[:, 0], standard)
    with np.errstate(over="ignore"):
        shares = np.nan_to_num(_linked(loss, scores)[rows], posinf=1e300)
    if job.kind == "number":
        return number_sums(
            shares[:, 0], own.labels[rows], loss.metrics, evaluation.bins, evaluation.largest_error, own.weights[rows]
        )
    threshold = job.config.metrics.threshold
    cut = threshold if isinstance(threshold, float) and len(job.classes) == 2 else None
    return vector_of(count(shares, own.labels[rows], cut, evaluation.bins, own.weights[rows]))


def _linked(loss: Loss, scores: np.ndarray) -> np.ndarray:
    """Predictions of the loss's link; where it has none, probabilities of a softmax."""
    if loss.link is not None:
        return loss.link.apply(scores)
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def _of_times(job: Job, model: np.ndarray, own: ClientExamples, scores: np.ndarray, standard: Map | None) -> np.ndarray:
    """A slot is a subject: its first place holds its first band."""
    assert job.table is not None
    assert job.table.target is not None
    assert job.evaluation is not None
    bands = job.table.target.bands
    filled = own.filled.reshape(-1, bands)
    chosen = filled[:, 0] & own.held_out.reshape(-1, bands)[:, 0]
    places = band_places(job.table.label, job.feature_names)
    later = np.zeros((bands, len(job.feature_names)), np.float32)
    unit = column_count(job.feature_names) ** -0.5 if job.config.data.scaling == "bounded" else 1.0  # public: never from rows
    later[np.arange(1, bands), places] = unit
    moved = later if standard is None else standard.apply_in_use(later) - standard.apply_in_use(np.zeros_like(later))
    effects = moved.astype(np.float64) @ model[0].astype(np.float64)
    base = scores.reshape(-1, bands)[chosen, :1]
    hazards = np.exp(np.clip(base + effects, -LARGEST_SCORE, LARGEST_SCORE))
    labels = own.labels.reshape(-1, bands)[chosen]
    spent = np.where(filled[chosen], np.abs(labels.astype(np.float64)), 0.0)
    expected = (spent * hazards).sum(axis=1)
    seen = np.asarray((np.where(filled[chosen], labels, 0.0) > 0).any(axis=1))
    predicted = restricted_mean(hazards) / bands
    return time_counts(predicted, expected, spent.sum(axis=1) / bands, seen, bands, job.evaluation.bins)
