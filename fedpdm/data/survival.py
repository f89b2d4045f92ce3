"""Time to event as rows of time bands: a public function of one subject at a time."""

__all__ = ["BandRows", "band_places", "expand", "gathered"]

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class BandRows(NamedTuple):
    """Rows of time bands.

    Attributes
    ----------
    features : ndarray
        [rows, features]; the indicator of the row's band is 1, the first band has none.
    labels : ndarray
        [rows] float32, the share of the band under observation; negative if the event did not happen in it.
    subjects : ndarray
        [rows] whose row it is, as a place among the subjects.
    """

    features: np.ndarray
    labels: np.ndarray
    subjects: np.ndarray


def band_places(label: str, feature_names: Sequence[str]) -> list[int]:
    """The places of the indicators of the bands after the first.

    Parameters
    ----------
    label : str
        Name of the label.
    feature_names : sequence of str
        Names of the features.

    Returns
    -------
    list of int
        The places.

    >>> band_places("days", ["age", "days band=2", "days band=3", "bias"])
    [1, 2]
    """
    return [place for place, name in enumerate(feature_names) if name.startswith(f"{label.replace('=', ':')} band=")]


def expand(features: np.ndarray, labels: np.ndarray, places: Sequence[int]) -> BandRows:
    """Make one row of every band that a subject enters.

    Parameters
    ----------
    features : ndarray
        [subjects, features] with zeros in the indicators of bands.
    labels : ndarray
        [subjects] the time as a share of the horizon, above 0; negative if the event was not seen.
    places : sequence of int
        The columns of the bands after the first.

    Returns
    -------
    BandRows
        A subject's rows follow each other, the first band first.

    Examples
    --------
    >>> rows = expand(np.zeros((2, 2)), np.array([0.75, -0.5]), [0])
    >>> rows.labels.tolist(), rows.features[:, 0].tolist(), rows.subjects.tolist()
    ([-1.0, 0.5, -1.0], [0.0, 1.0, 0.0], [0, 0, 1])
    """
    bands = len(places) + 1
    spent = np.abs(labels.astype(np.float64)) * bands  # in bands
    entered = np.clip(np.ceil(spent - 1e-9), 1, bands).astype(np.int64)
    subjects = np.repeat(np.arange(len(labels)), entered)
    first = np.cumsum(entered) - entered
    band = np.arange(len(subjects)) - first[subjects]
    share = np.clip(spent[subjects] - band, 0.0, 1.0)
    happened = (labels[subjects] > 0) & (band == entered[subjects] - 1)
    rows = features[subjects]
    later = band > 0
    rows[later.nonzero()[0], np.asarray(places, int)[band[later] - 1]] = 1
    return BandRows(rows, np.where(happened, share, -share).astype(np.float32), subjects)


def gathered(labels: np.ndarray, first_bands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every subject's time in bands, and whether the event was seen, from its rows of bands.

    Parameters
    ----------
    labels : ndarray
        [rows] of `expand`.
    first_bands : ndarray
        [rows] bool, where a subject begins.

    Returns
    -------
    tuple of ndarray
        [subjects] times in bands, and bool.
    """
    starts = np.flatnonzero(first_bands)
    return np.add.reduceat(np.abs(labels.astype(np.float64)), starts), np.maximum.reduceat(labels, starts) > 0
