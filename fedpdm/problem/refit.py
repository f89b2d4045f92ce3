r"""A finished linear model with fewer weights, at the least change of its scores on public examples.

This is post-processing: it looks at the released weights and at made-up or public rows, never at a private row, so it costs no
privacy. Weights are removed step by step. After each step the others are chosen again, so that the scores $w^\top x$ on the
public rows stay as they were:

$$\min_{v:\ \mathrm{supp}(v) = A}\ (v - w)^\top (S + r I)(v - w), \qquad
v_A = (S + rI)_{AA}^{-1}\, \big((S + rI) w\big)_A,$$

with $S$ the second moment of the public rows and $r$ a small ridge. Without the second step, removing weights would cost far
more: features of public rows are correlated, so the others can replace a removed one.
"""

import numpy as np
import scipy.linalg

from fedpdm.errors import ConfigError

__all__ = ["STEPS", "second_moment", "refit", "refit_path"]

STEPS = (
    0.7,
    0.5,
    0.3,
    0.2,
    0.14,
    0.1,
    0.07,
    0.05,
    0.04,
    0.03,
    0.02,
    0.014,
    0.01,
    0.005,
    0.002,
    0.001,
)  # shares kept, one by one
RIDGE = 1e-3  # of the mean of S's diagonal


def second_moment(rows: np.ndarray) -> np.ndarray:
    """Compute the mean of x x^T over public rows, with a small ridge that keeps it regular.

    Parameters
    ----------
    rows : ndarray
        Public rows [rows, m].

    Returns
    -------
    ndarray
        [m, m].
    """
    exact = rows.astype(np.float64)
    moment = exact.T @ exact / len(rows)
    return moment + RIDGE * float(np.trace(moment)) / len(moment) * np.eye(len(moment))


def refit(weights: np.ndarray, moment: np.ndarray, count: int) -> np.ndarray:
    """Keep `count` weights of all classes together, chosen and refitted as the module's docstring says.

    Parameters
    ----------
    weights : ndarray
        [classes, m], of a linear model.
    moment : ndarray
        [m, m], from `second_moment`.
    count : int
        How many weights may stay different from zero.

    Returns
    -------
    ndarray
        The model with at most `count` weights, in the type of `weights`.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(200, 3))
    >>> twins = np.column_stack([rows, rows[:, 0]])  # the last column repeats the first
    >>> thin = refit(np.array([[1.0, 0.0, 2.0, 1.1]]), second_moment(twins), 2)
    >>> int(np.count_nonzero(thin)), bool(abs(thin).max() > 1.9)
    (2, True)
    """
    return refit_path(weights, moment, [count])[count]


def refit_path(weights: np.ndarray, moment: np.ndarray, counts: list[int]) -> dict[int, np.ndarray]:
    """Make models with fewer weights, each from the next larger one.

    Parameters
    ----------
    weights : ndarray
        The full model.
    moment : ndarray
        From `second_moment`.
    counts : list of int
        Numbers of weights.

    Returns
    -------
    dict of int to ndarray
        The models by their number of weights.
    """
    smallest, size = min(counts), weights.size
    if not 1 <= smallest <= max(counts) <= size:
        raise ConfigError(f"A model of {size} weights cannot keep {smallest} to {max(counts)} of them: keep 1 to {size}.")
    goal = weights.astype(np.float64)
    loud, target = np.sqrt(np.diag(moment)), goal @ moment
    steps = sorted(
        {*counts, *(c for share in STEPS if smallest < (c := round(share * size)) < np.count_nonzero(goal))}, reverse=True
    )
    model, found = goal, {}
    for count in steps:
        keep = _largest(np.abs(model) * loud, count)
        model = np.stack([_solve(moment, row, kept) for row, kept in zip(target, keep, strict=True)])
        if count in counts:
            found[count] = model.astype(weights.dtype)
    return found


def _largest(sizes: np.ndarray, count: int) -> np.ndarray:
    """Mark the `count` largest entries that are not zero; ties go to the lower index."""
    order = np.argsort(-sizes, axis=None, kind="stable")[:count]
    keep = np.zeros(sizes.size, bool)
    keep[order] = True
    return keep.reshape(sizes.shape) & (sizes > 0)


def _solve(moment: np.ndarray, target: np.ndarray, kept: np.ndarray) -> np.ndarray:
    answer = np.zeros(len(moment))
    if kept.any():
        answer[kept] = scipy.linalg.solve(moment[np.ix_(kept, kept)], target[kept], assume_a="pos")
    return answer
