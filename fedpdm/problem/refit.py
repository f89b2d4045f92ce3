r"""A finished linear model with fewer weights, at the least change of its scores on public examples.

This is post-processing: it looks at the released weights and at a public second moment $S$ of the features, never at a private
row, so it costs no privacy. Weights are removed step by step. After each step the others are chosen again, so that the scores
$w^\top x$ stay as they were:

$$\min_{v:\ \mathrm{supp}(v) = A}\ (v - w)^\top (S + r I)(v - w), \qquad
v_A = (S + rI)_{AA}^{-1}\, \big((S + rI) w\big)_A,$$

with $r$ a small ridge. Without the second step, removing weights would cost far more: features are correlated, so the others
can replace a removed one. Weights leave in groups: single weights, all classes of a feature, or all features of a column.
The groups that leave first are those that add least to the scores. The mean of what a group adds does not count, because the
bias can add it instead and always stays: indicators of all levels of a word add up to 1 in every row.
"""

from collections.abc import Sequence

import numpy as np

from fedpdm.errors import ConfigError

__all__ = ["ALWAYS", "STEPS", "refit", "refit_path", "second_moment", "with_ridge"]

STEPS = (0.7, 0.5, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.04, 0.03, 0.02, 0.014, 0.01, 0.005, 0.002, 0.001)  # shares kept, in turn
RIDGE = 1e-3  # of the mean of S's diagonal
ALWAYS = -1  # the group of weights that are never removed


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
    return with_ridge(exact.T @ exact / len(rows))


def with_ridge(moment: np.ndarray) -> np.ndarray:
    """Add the ridge to a second moment.

    Parameters
    ----------
    moment : ndarray
        [m, m].

    Returns
    -------
    ndarray
        A regular matrix.
    """
    return moment + RIDGE * float(np.trace(moment)) / len(moment) * np.eye(len(moment))


def refit(weights: np.ndarray, moment: np.ndarray, count: int, groups: np.ndarray | None = None) -> np.ndarray:
    """Keep `count` weights of all classes together, chosen and refitted as the module's docstring says.

    Parameters
    ----------
    weights : ndarray
        [classes, m], of a linear model.
    moment : ndarray
        [m, m], from `second_moment`.
    count : int
        How many weights, or groups of them, may stay different from zero.
    groups : ndarray, optional
        As in `refit_path`.

    Returns
    -------
    ndarray
        The smaller model, in the type of `weights`.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(200, 3))
    >>> twins = np.column_stack([rows, rows[:, 0]])  # the last column repeats the first
    >>> thin = refit(np.array([[1.0, 0.0, 2.0, 1.1]]), second_moment(twins), 2)
    >>> int(np.count_nonzero(thin)), bool(abs(thin).max() > 1.9)
    (2, True)
    """
    return refit_path(weights, moment, [count], groups)[count]


def refit_path(
    weights: np.ndarray, moment: np.ndarray, counts: Sequence[int], groups: np.ndarray | None = None
) -> dict[int, np.ndarray]:
    """Make models with fewer weights, each from the next larger one.

    Parameters
    ----------
    weights : ndarray
        [classes, m], the full model.
    moment : ndarray
        From `second_moment`.
    counts : sequence of int
        Numbers of groups that stay.
    groups : ndarray, optional
        [classes, m] the number 0, 1, ... of every weight's group, or `ALWAYS`; default: every weight is a group.

    Returns
    -------
    dict of int to ndarray
        The models by their number of groups.
    """
    labels = np.arange(weights.size).reshape(weights.shape) if groups is None else groups
    total = int(labels.max()) + 1
    if not 1 <= min(counts) <= max(counts) <= total:
        raise ConfigError(f"A model of {total} weights cannot keep {min(counts)} to {max(counts)} of them: keep 1 to {total}.")
    goal = weights.astype(np.float64)
    between = (c for share in STEPS if min(counts) < (c := round(share * total)))
    model, target, found = goal, goal @ moment, {}
    beside = _beside(moment, (labels == ALWAYS).all(axis=0))
    for count in sorted({*counts, *between}, reverse=True):
        kept = _largest(_sizes(model, beside, labels, total), count)
        support = (model != 0) & np.append(kept, True)[labels]  # ALWAYS is the last place
        model = _solved(moment, target, support)
        if count in counts:
            found[count] = model.astype(weights.dtype)
    return found


def _beside(moment: np.ndarray, always: np.ndarray) -> np.ndarray:
    """Return the second moment of what the features that always stay cannot predict; beside a bias it is the covariance."""
    if not always.any():
        return moment
    return moment - moment[:, always] @ np.linalg.solve(moment[np.ix_(always, always)], moment[always])


def _sizes(model: np.ndarray, moment: np.ndarray, labels: np.ndarray, total: int) -> np.ndarray:
    """Return every group's share in the scores: the mean square of what it adds to them, over all classes."""
    if np.bincount(labels[labels >= 0], minlength=total).max() == 1:
        each = model**2 * np.diag(moment)
    else:  # w_g^T S_gg w_g, from the products of every weight with its own group
        each = np.stack(
            [
                row * np.sum(np.where(own[:, None] == own, moment, 0) * row, axis=1)
                for row, own in zip(model, labels, strict=True)
            ]
        )
    return np.bincount(labels[labels >= 0], each[labels >= 0], total)


def _largest(sizes: np.ndarray, count: int) -> np.ndarray:
    """Mark the `count` largest entries that are not zero; ties go to the lower index."""
    keep = np.zeros(sizes.size, bool)
    keep[np.argsort(-sizes, kind="stable")[:count]] = True
    return keep & (sizes > 0)


def _solved(moment: np.ndarray, target: np.ndarray, support: np.ndarray) -> np.ndarray:
    """Solve for the weights of every class on its support; equal supports share a factor."""
    from scipy.linalg import solve  # slow to import, and rarely needed

    answer = np.zeros(target.shape)
    for kept in np.unique(support, axis=0):
        rows = np.flatnonzero((support == kept).all(axis=1))
        if kept.any():
            found = solve(moment[np.ix_(kept, kept)], target[np.ix_(rows, kept)].T, assume_a="pos")
            answer[np.ix_(rows, kept)] = found.T
    return answer
