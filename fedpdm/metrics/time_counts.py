"""Metrics of times to an event from counts, for a client that may release noised counts but no single prediction.

A subject is in one cell of a table: by its predicted time, by the band in which its observation ended, and by whether the event
was seen. Subjects of one band count as ties, so the concordance is over pairs of different bands.
"""

import math
from typing import Any

import numpy as np

from fedpdm.metrics.intervals import Z

__all__ = ["TIME_SENSITIVITY", "metrics_of_times", "time_counts"]

MOST_EVENTS = 3.0  # expected events of a subject beyond which it counts as this many
TIME_SENSITIVITY = 2.0  # the root of 1 (subjects), 1 (events), 1 (expected events) and 1 (a cell of the table)
DRAWS = 400  # of the noise, to see how far it moves a figure


def time_counts(
    predicted: np.ndarray, expected: np.ndarray, times: np.ndarray, seen: np.ndarray, bands: int, bins: int
) -> np.ndarray:
    """Count subjects; sums of several nodes' counts are the counts of all their subjects.

    Parameters
    ----------
    predicted : ndarray
        [subjects] expected times, as shares of the horizon.
    expected : ndarray
        [subjects] expected numbers of events while a subject was under observation (its cumulative hazard).
    times, seen : ndarray
        [subjects] shares of the horizon, above 0, and whether the event was seen then.
    bands, bins : int
        Public bands of the time axis, and bins of the predicted times.

    Returns
    -------
    ndarray
        Subjects, events, expected events over `MOST_EVENTS`, and the table [bins, bands, 2] as a row.

    Examples
    --------
    >>> time_counts(np.array([0.9]), np.array([0.6]), np.array([0.3]), np.array([True]), 2, 2).round(3).tolist()
    [1.0, 1.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    """
    guess = np.nan_to_num(np.asarray(predicted, np.float64), nan=0.5, posinf=1.0, neginf=0.0)
    hazard = np.clip(np.nan_to_num(np.asarray(expected, np.float64), nan=0.0, posinf=MOST_EVENTS), 0, MOST_EVENTS)
    column = np.clip((guess * bins).astype(np.int64), 0, bins - 1)
    band = np.clip(np.ceil(np.asarray(times, np.float64) * bands - 1e-6).astype(np.int64) - 1, 0, bands - 1)
    table = np.bincount((column * bands + band) * 2 + seen, minlength=2 * bins * bands).astype(float)
    return np.concatenate([[float(len(guess)), float(np.sum(seen)), float(hazard.sum()) / MOST_EVENTS], table])


def metrics_of_times(vector: np.ndarray, bands: int, bins: int, deviation: float = 0.0) -> dict[str, Any]:
    """Compute concordance, events and expected events from counts, with intervals that hold the noise.

    Parameters
    ----------
    vector : ndarray
        Sums over nodes of `time_counts`, with or without noise.
    bands, bins : int
        As in `time_counts`.
    deviation : float
        Standard deviation of the noise in one number of the vector.

    Returns
    -------
    dict
        The figures, as a summary stores them. What the noise hides has no value.
    """
    rng, hidden = np.random.default_rng(0), 2 * deviation
    value, sampling = _concordance(vector[3:].reshape(bins, bands, 2), hidden)
    drawn = [_concordance((vector[3:] + deviation * rng.normal(size=len(vector) - 3)).reshape(bins, bands, 2), hidden)[0]
             for _ in range(DRAWS if deviation else 0)]  # fmt: skip
    known = [one for one in drawn if one is not None]
    error = math.hypot(sampling, float(np.std(known)) if known else 0.0)
    subjects, events, expected = float(vector[0]), float(vector[1]), float(vector[2]) * MOST_EVENTS
    found: dict[str, Any] = {"rows": float(f"{subjects:.6g}"), "kind": "time", "events": float(f"{events:.6g}")}
    found["expected_events"] = float(f"{expected:.6g}")
    ends = None if value is None else [max(value - Z * error, 0.0), min(value + Z * error, 1.0)]
    found["concordance"] = {
        "value": None if value is None else float(f"{value:.9g}"),
        "interval": None if ends is None else [float(f"{end:.6g}") for end in ends],
    }
    return found


def _concordance(table: np.ndarray, hidden: float) -> tuple[float | None, float]:
    """The share of comparable pairs in the right order, and its standard error over subjects."""
    events, every = table[:, :, 1], table.sum(axis=2)
    later = np.cumsum(every[:, ::-1], axis=1)[:, ::-1] - every  # [bins, bands] subjects of a bin that end in a later band
    above = np.cumsum(later[::-1], axis=0)[::-1] - later / 2  # of higher bins, ties half
    pairs_as_first, right_as_first = np.broadcast_to(later.sum(axis=0), events.shape), above
    pairs = float((events * pairs_as_first).sum())
    if min(events.sum(), every.sum()) <= max(hidden * 4, 0) or pairs <= 0:
        return None, 0.0
    value = float(np.clip((events * right_as_first).sum() / pairs, 0, 1))
    before = np.cumsum(events, axis=1) - events  # events of a bin in earlier bands
    right_as_second = np.cumsum(before, axis=0) - before / 2  # of lower bins, ties half
    pairs_as_second = np.broadcast_to(before.sum(axis=0), events.shape)
    second = right_as_second - value * pairs_as_second
    first = right_as_first - value * pairs_as_first + second
    counts = np.maximum(table, 0)
    squares = float((counts[:, :, 1] * first**2 + counts[:, :, 0] * second**2).sum())
    return value, math.sqrt(squares) / pairs
