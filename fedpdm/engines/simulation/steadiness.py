"""How far a coefficient can be trusted: whether its sign and its selection stayed, and whether noise alone could explain it.

Everything here is computed from released models: the global model of the last rounds, and the clients' noised solutions. So it
costs no privacy.
"""

from typing import Any

import numpy as np

__all__ = ["contrasts", "steadiness"]

Z = 1.96  # standard deviations that noise alone reaches in one case of twenty


def contrasts(model: Any) -> Any:
    """Return the coefficients that a report shows: with two classes the difference of their rows, else all.

    Parameters
    ----------
    model : array
        [..., classes, features].

    Returns
    -------
    array
        [..., 1 or classes, features].

    Examples
    --------
    >>> contrasts(np.array([[1.0, 2.0], [4.0, 2.0]])).tolist()
    [[3.0, 0.0]]
    """
    return model[..., 1:, :] - model[..., :1, :] if model.shape[-2] == 2 else model


def steadiness(
    model: np.ndarray, local_models: np.ndarray, tail_signs: np.ndarray, rounds: int, sigma: float
) -> dict[str, np.ndarray]:
    """Return shares in [0, 1] and flags, each of the shape of `contrasts(model)`.

    Parameters
    ----------
    model : ndarray
        [classes, features] the last global model.
    local_models : ndarray
        [clients, classes, features] the clients' last noised solutions; empty if they were not stored.
    tail_signs : ndarray
        [2, ...] in how many of the last rounds each coefficient was above 0, and below.
    rounds : int
        The number of these rounds; 0 if a run ended before its tail.
    sigma : float
        Standard deviation of the noise in a coordinate of the mean of the last messages; 0 without noise.

    Returns
    -------
    dict
        "sign_rounds": share of the last rounds with the present sign; "selected_rounds": with any sign (both left out without
        such rounds); "sign_clients": share of the clients whose own solution has that sign (left out if unknown); "noise": 1 if
        noise alone could explain the coefficient: it is within 1.96 standard deviations of the noise, or its sign stayed in
        fewer than 95 % of the rounds.
    """
    shown = np.asarray(contrasts(model))
    sign = np.sign(shown)
    found, held = {}, np.ones(shown.shape)
    if rounds:
        above, below = tail_signs / rounds
        held = np.where(sign > 0, above, np.where(sign < 0, below, 1 - above - below))
        found = {"sign_rounds": held, "selected_rounds": above + below}
    if len(local_models):
        found["sign_clients"] = (np.sign(contrasts(local_models)) == sign).mean(axis=0)
    deviation = sigma * (2**0.5 if model.shape[-2] == 2 else 1.0)
    doubtful = (np.abs(shown) <= Z * deviation) | (held < 0.95) if sigma else np.zeros(shown.shape, bool)
    return {name: np.asarray(values, np.float32) for name, values in (found | {"noise": doubtful & (shown != 0)}).items()}
