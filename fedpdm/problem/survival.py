r"""Time to event as counts: the piecewise exponential model, a sum over rows.

The time axis is cut into K public bands of equal width, and the hazard is constant in each. A subject becomes one row per band
that it enters (`fedpdm.data.survival`), whose label is the share e of the band that it was under observation, negative if
the event did not happen there. The likelihood is that of a Poisson count d (1: the event) with the mean $e\,e^s$,
$s = x \cdot a$ being the logarithm of the hazard per band.

Cox's partial likelihood does not fit here: each of its terms holds a sum over all subjects that are still at risk, over all
clients. One subject is in many terms, nothing bounds how far it moves the gradient, and no client can compute its part alone.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.problem.losses import Loss
from fedpdm.problem.prediction import exponential
from fedpdm.problem.regression import of_one_score

__all__ = ["piecewise_exponential", "restricted_mean"]


def piecewise_exponential(clip: float = math.inf) -> Loss:
    r"""$e\,e^{s} - d\,s$, for a label e (d = 1, the event) or -e (d = 0), $0 < e \le 1$.

    The slope is $e\,e^{s} - d$, at least -1. With a finite `clip` it is cut to $[-\text{clip}, \text{clip}]$; where it is not
    cut, $e\,e^{s} \le d + \text{clip}$, so it is $(1 + \text{clip})\|a\|^2$-smooth.

    Parameters
    ----------
    clip : float
        Bound on the slope; infinite: no clipping.

    Returns
    -------
    Loss
        The loss.
    """

    def value(s: Array, y: Array) -> Array:
        return jnp.abs(y) * jnp.exp(s) - (y > 0) * s

    def slope(s: Array, y: Array) -> Array:
        return jnp.clip(jnp.minimum(jnp.abs(y), 1) * jnp.exp(s) - (y > 0), -clip, clip)

    return of_one_score("piecewise-exponential", value, slope, clip, 1 + clip, exponential)._replace(
        target="time", metrics=("concordance",)
    )


def restricted_mean(hazards: np.ndarray) -> np.ndarray:
    """Compute the expected time to the event within the bands.

    Parameters
    ----------
    hazards : ndarray
        [rows, K] per band.

    Returns
    -------
    ndarray
        [rows], in bands.

    Examples
    --------
    >>> restricted_mean(np.array([[1e-12, 1e-12], [50.0, 1.0]])).round(3).tolist()
    [2.0, 0.02]
    """
    before = np.cumsum(hazards, axis=1) - hazards
    within = -np.expm1(-hazards) / np.maximum(hazards, 1e-12)
    return (np.exp(-before) * within).sum(axis=1)
