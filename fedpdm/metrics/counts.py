"""Metrics from counts, for a client that may release noised counts but no single prediction."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedpdm.metrics.confusion import balanced_share, class_entries, majority_share, right_share, whole_counts
from fedpdm.metrics.intervals import Estimate, Z
from fedpdm.metrics.predictions import plain, predicted

__all__ = ["Counts", "count", "counts_of", "metrics_of_counts", "vector_of"]

BINS = 20
LEAST = 1e-3  # the smallest probability that a bin stands for in a log loss
DRAWS = 400  # of the noise, to see how far it moves a figure
HIDDEN = 0.25  # how far noise alone may move a share in 95 of 100 cases; beyond it the figure says nothing


class Counts(NamedTuple):
    """Test rows, counted. One row is in one cell of `confusion` and in one cell of each of the `histograms`.

    Attributes
    ----------
    confusion : ndarray
        [classes, classes] rows by true and predicted class.
    histograms : ndarray
        [kinds, 2, bins]: of a class, the rows of other classes (0) and of its own (1) by its probability. Of two classes the
        second one alone, as the first one's is its mirror image; else of every class.
    """

    confusion: np.ndarray
    histograms: np.ndarray


def count(
    probabilities: np.ndarray,
    labels: np.ndarray,
    threshold: float | None = None,
    bins: int = BINS,
    weights: np.ndarray | None = None,
) -> Counts:
    """Count the rows; sums of several nodes' counts are the counts of all their rows.

    Bins are equally wide in the arcsine of the root of a probability: finer near 0 and 1, where rare classes are.

    Parameters
    ----------
    probabilities, labels, threshold
        As in `fedpdm.metrics.evaluate`.
    bins : int
        Of every histogram.
    weights : ndarray, optional
        The weight of a row: 1/m for each of a person's m rows.

    Returns
    -------
    Counts
        The counts.
    """
    shares, classes = np.asarray(probabilities, np.float64), probabilities.shape[1]
    each = np.ones(len(shares)) if weights is None else np.asarray(weights, np.float64)
    places = np.clip((np.arcsin(np.sqrt(np.clip(shares, 0, 1))) * (2 / np.pi) * bins).astype(np.int64), 0, bins - 1)
    cells = labels * classes + predicted(shares, threshold)
    confusion = np.bincount(cells, each, classes**2).reshape(classes, classes)
    kinds = [1] if classes == 2 else range(classes)
    histograms = [np.bincount((labels == k) * bins + places[:, k], each, 2 * bins).reshape(2, bins) for k in kinds]
    return Counts(confusion, np.array(histograms))


def vector_of(counts: Counts) -> np.ndarray:
    """Put all cells in one vector, which a row, or all rows of a person whose weights add up to 1, moves by sqrt(2) at most.

    The histograms are divided by the root of their number: so they have half of the squared distance, the confusion matrix the
    other half.

    Parameters
    ----------
    counts : Counts
        The counts.

    Returns
    -------
    ndarray
        A flat vector.

    Examples
    --------
    >>> first, second = (vector_of(count(np.eye(3)[rows], np.array(rows), bins=4)) for rows in ([0, 1], [0, 1, 2]))
    >>> round(float(np.linalg.norm(second - first) ** 2), 9)
    2.0
    """
    return np.concatenate([counts.confusion.ravel(), counts.histograms.ravel() / len(counts.histograms) ** 0.5])


def counts_of(vector: np.ndarray, classes: int, bins: int) -> Counts:
    """Return the counts of a vector of `vector_of`.

    Parameters
    ----------
    vector : ndarray
        The vector, with or without noise.
    classes, bins : int
        Their numbers.

    Returns
    -------
    Counts
        The counts.
    """
    kinds = 1 if classes == 2 else classes
    cells = vector[classes**2 :].reshape(kinds, 2, bins) * kinds**0.5
    return Counts(vector[: classes**2].reshape(classes, classes), cells)


def metrics_of_counts(counts: Counts, class_names: Sequence[str], deviation: float = 0.0) -> dict[str, Any]:
    """Compute the figures of `fedpdm.metrics.evaluate` from counts.

    Probabilities are taken for the middle of their bin, so AUC, log loss and Brier score are off by a bin's width at most in
    what they compare. Noise widens every interval by how far it moves the figure (in 400 draws): squared distances add up. What
    the noise hides has no value: a share of fewer rows than twice its deviation. A figure that noise moves by more than a
    quarter (a log loss by more than a quarter of a blind guess's) has an interval alone.

    Parameters
    ----------
    counts : Counts
        Sums over nodes, with or without noise.
    class_names : sequence of str
        What the classes are called.
    deviation : float
        Standard deviation of the noise in one number of `vector_of`.

    Returns
    -------
    dict
        The figures, as a summary stores them.
    """
    confusion, cells = (np.asarray(part, np.float64) for part in counts)
    classes = len(confusion)
    known = np.maximum(confusion, 0)
    found: dict[str, Any] = {
        "rows": float(f"{confusion.sum():.6g}"),
        "threshold": None,
        "accuracy": plain(right_share(known)),
        "majority_rate": plain(majority_share(known)),
        "balanced_accuracy": plain(balanced_share(known)),
        "classes": class_entries(known, class_names, [Estimate(None)] * classes),
        "confusion": [[float(f"{cell:.6g}") for cell in row] for row in confusion] if deviation else whole_counts(known),
    }
    hidden = 2 * deviation * classes**0.5
    values = _figures(confusion, cells, hidden)
    noise = _noise(counts, hidden, deviation) if deviation else dict.fromkeys(values, 0.0)
    sampling = _sampling_errors(np.maximum(cells, 0), values)
    for name, value in values.items():
        section, _, key = name.rpartition(":")
        home = found["classes"][int(section)] if section else found
        over_rows = sampling[name] if name in sampling else home[key]["interval"]
        unit = float(np.log(classes)) if key == "log_loss" else 1.0
        home[key] = _widened(value, over_rows, noise[name], _most(key))
        if Z * noise[name] > HIDDEN * unit:
            home[key]["value"] = None
    found["calibration"] = [_curve(others, own, deviation * len(cells) ** 0.5) for others, own in cells]
    return found


def _noise(counts: Counts, hidden: float, deviation: float) -> dict[str, float]:
    """How far noise moves every figure: the standard deviation over draws of as much noise again."""
    rng, sides = np.random.default_rng(0), (deviation, deviation * len(counts.histograms) ** 0.5)
    drawn: dict[str, list[float]] = {}
    for _ in range(DRAWS):
        first, second = (cells + spread * rng.normal(size=cells.shape) for cells, spread in zip(counts, sides, strict=True))
        for name, value in _figures(first, second, hidden).items():
            drawn.setdefault(name, [])
            if value is not None:
                drawn[name].append(value)
    return {name: float(np.std(values)) if values else 0.0 for name, values in drawn.items()}


def _figures(confusion: np.ndarray, cells: np.ndarray, hidden: float) -> dict[str, float | None]:
    """Every figure by name; those of a class k are "k:name"."""
    classes, bins = len(confusion), cells.shape[2]
    total, true, called, hits = confusion.sum(), confusion.sum(axis=1), confusion.sum(axis=0), np.diag(confusion)
    recalls = [_ratio(hits[k], true[k], hidden) for k in range(classes)]
    known = [recall for recall in recalls if recall is not None]
    areas = [_area(others, own, hidden) for others, own in cells]
    if classes == 2:
        areas = areas * 2
    middle = _middles(bins)
    own, others = cells[:, 1].sum(axis=0), cells[:, 0].sum(axis=0)
    losses = -np.log(np.maximum(middle, LEAST))
    if classes == 2:  # of the first class the histogram is the mirror image
        log_loss = (own * losses + others * losses[::-1]).sum()
        rows = own.sum() + others.sum()
    else:
        log_loss, rows = (own * losses).sum(), own.sum()
    found: dict[str, float | None] = {
        "accuracy": _ratio(hits.sum(), total, hidden),
        "balanced_accuracy": float(np.mean(known)) if len(known) == classes else None,
        "majority_rate": _ratio(true.max(), total, hidden),
        "auc": None if None in areas else float(np.mean([area for area in areas if area is not None])),
        "log_loss": _ratio(log_loss, rows, hidden),
        "brier": _ratio(float((cells[:, 0] * middle**2 + cells[:, 1] * (1 - middle) ** 2).sum()), rows, hidden),
    }
    for k in range(classes):
        found |= {f"{k}:recall": recalls[k], f"{k}:precision": _ratio(hits[k], called[k], hidden), f"{k}:auc": areas[k]}
    return found


def _middles(bins: int) -> np.ndarray:
    """The probability in the middle of every bin."""
    return np.sin((np.arange(bins) + 0.5) / bins * np.pi / 2) ** 2


def _area(others: np.ndarray, own: np.ndarray, hidden: float) -> float | None:
    """The AUC of binned scores: rows in one bin are ties. Noise of mean 0 does not bias the sum."""
    below = np.cumsum(others) - others / 2
    if min(own.sum(), others.sum()) <= hidden:
        return None
    return float((own * below).sum() / (own.sum() * others.sum()))


def _sampling_errors(cells: np.ndarray, values: dict[str, float | None]) -> dict[str, list[float] | None]:
    """Intervals over rows of the figures that come from histograms; `cells` are not negative."""
    middle = _middles(cells.shape[2])
    found: dict[str, list[float] | None] = {}
    variances = [_area_variance(*pair) for pair in cells]
    variances = variances * 2 if len(cells) == 1 else variances
    for k, variance in enumerate(variances):
        found[f"{k}:auc"] = _around(values[f"{k}:auc"], variance)
    # the mean of several classes' AUCs: as if they moved together, which is the most
    found["auc"] = _around(values["auc"], float(np.mean(np.sqrt(variances))) ** 2)
    losses, errors = -np.log(np.maximum(middle, LEAST)), middle**2
    if len(cells) == 1:
        counted = np.concatenate([cells[0, 0], cells[0, 1]])
        each = {"log_loss": np.concatenate([losses[::-1], losses]), "brier": np.concatenate([errors, (1 - middle) ** 2])}
    else:
        counted, each = cells[:, 1].sum(axis=0), {"log_loss": losses, "brier": 2 * (1 - middle) ** 2}
    rows = max(counted.sum(), 1.0)
    for name, of_bin in each.items():
        mean = (counted * of_bin).sum() / rows
        found[name] = _around(values[name], float((counted * (of_bin - mean) ** 2).sum() / rows**2))
    return found


def _area_variance(others: np.ndarray, own: np.ndarray) -> float:
    """DeLong's, of binned scores."""
    if not others.sum() or not own.sum():
        return 0.25
    above = (np.cumsum(others) - others / 2) / others.sum()
    below = 1 - (np.cumsum(own) - own / 2) / own.sum()
    sides = ((own, above), (others, below))
    return float(sum((n * (s - (n * s).sum() / n.sum()) ** 2).sum() / n.sum() / max(n.sum() - 1, 1) for n, s in sides))


def _around(value: float | None, variance: float) -> list[float] | None:
    return None if value is None else [value - Z * variance**0.5, value + Z * variance**0.5]


def _most(figure: str) -> float:
    """The largest value that a figure of whole counts can have."""
    return {"log_loss": np.inf, "brier": 2.0}.get(figure, 1.0)


def _widened(value: float | None, interval: Sequence[float] | None, noise: float, most: float) -> dict[str, Any]:
    """The figure, its interval over rows widened by the noise's standard deviation; both are cut to [0, most]."""
    if value is None or interval is None:
        return {"value": None if value is None else float(np.clip(value, 0.0, most)), "interval": None}
    below, above = (float(np.hypot(max(reach, 0.0), Z * noise)) for reach in (value - interval[0], interval[1] - value))
    shown, low, high = (float(np.clip(end, 0.0, most)) for end in (value, value - below, value + above))
    return {"value": float(f"{shown:.9g}"), "interval": [float(f"{low:.6g}"), float(f"{high:.6g}")]}


def _curve(others: np.ndarray, own: np.ndarray, deviation: float) -> list[dict[str, Any]]:
    """The calibration curve: bins whose rows stand out of the noise."""
    both, middle, curve = others + own, _middles(len(own)), []
    for b in np.flatnonzero(both > max(2 * deviation * 2**0.5, 0.5)):
        value = float(np.clip(own[b] / both[b], 0, 1))
        variance = value * (1 - value) / both[b] + deviation**2 * ((1 - value) ** 2 + value**2) / both[b] ** 2
        interval = [max(value - Z * variance**0.5, 0.0), min(value + Z * variance**0.5, 1.0)]
        rows, place = float(f"{both[b]:.6g}"), float(f"{middle[b]:.6g}")
        curve.append({"rows": rows, "predicted": place, "value": value, "interval": interval})
    return curve


def _ratio(value: float, rows: float, hidden: float) -> float | None:
    """The share, which noise may take beyond its range: a cut would hide how far noise moves it."""
    return float(value / rows) if rows > hidden else None
