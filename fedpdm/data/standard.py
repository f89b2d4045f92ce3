"""Standardised features (minus their mean, divided by their deviation), and models on them for the original features."""

__all__ = ["Standard", "exact_standard"]

from typing import NamedTuple

import numpy as np

from fedpdm.data.federation import Federation
from fedpdm.data.ragged import real_rows

FLAT = 1e-6  # deviation below which a column of features in [0, 1] counts as constant


class Standard(NamedTuple):
    """The map (a - centre) / scale of the features.

    Attributes
    ----------
    centre, scale : ndarray
        [features] float32. The bias has centre 0.
    bias : bool
        Whether the last feature is the bias, which absorbs the effect of the centres on the scores.
    shrink : float
        The factor on the other weights of a model when it is used. Below 1 if training cut long rows, which use does not.

    Examples
    --------
    >>> standard = Standard(np.float32([2.0, 0.0]), np.float32([4.0, 1.0]), True)
    >>> rows = np.float32([[6.0, 1.0]])
    >>> model = np.float32([[3.0, 5.0]])
    >>> (standard.apply(rows) @ model.T).tolist(), (rows @ standard.fold(model).T).tolist()
    ([[8.0]], [[8.0]])
    >>> standard.unfold(standard.fold(model)).tolist()
    [[3.0, 5.0]]
    """

    centre: np.ndarray
    scale: np.ndarray
    bias: bool
    shrink: float = 1.0

    def apply(self, features: np.ndarray) -> np.ndarray:
        """Return the features [..., n] in the form that training uses."""
        return (features - self.centre) / self.scale

    def apply_in_use(self, features: np.ndarray) -> np.ndarray:
        """Return the features [..., n] on which a trained model has the scores of its folded form."""
        found = self.apply(features)
        if self.shrink != 1:
            found[..., : found.shape[-1] - self.bias] *= np.float32(self.shrink)
        return found

    def fold(self, model: np.ndarray) -> np.ndarray:
        """Return the model [classes, n] for the original features, with the shrunken weights."""
        if self.shrink != 1:
            model = np.array(model, np.float32)
            model[:, : model.shape[1] - self.bias] *= np.float32(self.shrink)
        folded = (model / self.scale).astype(np.float32)
        if self.bias:
            moved = model[:, :-1].astype(np.float64) / self.scale[:-1] @ self.centre[:-1].astype(np.float64)
            folded[:, -1] = model[:, -1] / self.scale[-1] - moved
        return folded

    def unfold(self, model: np.ndarray) -> np.ndarray:
        """Return the model [classes, n] for standardised features of one for the original features."""
        unfolded = model.astype(np.float64) * self.scale
        if self.bias:
            moved = model[:, :-1].astype(np.float64) @ self.centre[:-1].astype(np.float64)
            unfolded[:, -1] = (model[:, -1] + moved) * self.scale[-1]
        return unfolded.astype(np.float32)


def exact_standard(federation: Federation) -> Standard:
    """Compute means and deviations over all clients' training rows, without privacy.

    Parameters
    ----------
    federation : Federation
        The clients' rows.

    Returns
    -------
    Standard
        The scaling.
    """
    rows = real_rows(federation.features, federation.sizes)
    bias = federation.feature_names[-1] == "bias"
    centre = rows.mean(axis=0, dtype=np.float64)
    # a column at a time: as float64 all rows would take twice the table's memory again
    deviation = np.array([rows[:, column].astype(np.float64).std() for column in range(rows.shape[1])])
    scale = np.where(deviation > FLAT, deviation, 1.0)
    if bias:
        centre[-1], scale[-1] = 0.0, 1.0
    else:  # without a bias nothing can absorb the centres
        centre[:] = 0.0
    return Standard(centre.astype(np.float32), scale.astype(np.float32), bias)
