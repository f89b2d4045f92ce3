r"""Audit one training run: many canaries at once; a coin decides for each whether it is in the data.

Let m canaries be in the data with probability 1/2 each, independently. From the messages of one run the auditor makes exactly r
guesses; each says whether one canary was in the data, and v of them are right.

Theorem O. *Let the mechanism have the trade-off function f between data sets that differ in one canary: for every event E,
$P_D(E) \le 1 - f(P_{D'}(E))$. Let $p_i$ be the probability of exactly i right guesses. Then for every set T of numbers*
$$\sum_{i \in T} \tfrac im\, p_i \;\le\; 1 - f\Big(\sum_{i \in T} \tfrac{r-i+1}m\, p_{i-1}\Big).$$
It holds for any dependence between the canaries. The proof, and the bound on the tail that `refuted` computes from it, are in
docs/audit.md. The inequality is that of Mahloujifar, Melis, Chaudhuri (2024); the game that of Steinke, Nasr, Jagielski (2023).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr, ndtri

from fedpdm.algorithms.local import Examples
from fedpdm.audit.attacks import SATURATING, alone, canary_norm, least_used, telling_label, wrong_about
from fedpdm.audit.runner import OWN, PRESENT, Runner
from fedpdm.errors import ConfigError
from fedpdm.rounds import Setup

__all__ = ["Guessed", "Canaries", "place_canaries", "one_run", "refuted", "least_mu", "least_epsilon", "guess"]

GUESSED = 0.2  # share of the canaries that are guessed: those with the clearest scores
SIMULATED = 200  # runs by the auditor itself, which show the covariance between rounds

Inverse = Callable[[float], float]  # y -> the least x with 1 - f(x) >= y


def refuted(canaries: int, guesses: int, right: int, level: float, inverse: Inverse) -> bool:
    """Tell whether this many right guesses have a probability below `level` for every mechanism with this trade-off function.

    Parameters
    ----------
    canaries, guesses, right
        m, r and v of the module's head; r is fixed before the run.
    level
        The largest allowed probability of a wrong verdict.
    inverse
        The inverse of 1 - f, see `least_mu` and `least_epsilon`.

    Returns
    -------
    bool
        True if the trade-off function is refuted.

    References
    ----------
    Mahloujifar, Melis, Chaudhuri: "Auditing f-differential privacy in one run", 2024.
    """
    m, r, v = canaries, guesses, right
    if v == 0:
        return False

    def ratio(k: int) -> float:
        return (k - 1) / (r - k + 1)

    # Lower bounds on a_k = sum_{i >= k} (i/m) p_i and h_k = sum_{i >= k} ((r - i)/m) p_i, if p_v + ... + p_r >= level.
    a = v * level / m
    fixed = a - ratio(v) * (r - v) * level / m
    h, between = max(inverse(a), 0.0), 0.0
    a = max(a, fixed + ratio(v) * h)
    for k in range(v - 1, 0, -1):
        between += (ratio(k + 1) - ratio(k)) * h
        h = max(h, inverse(a))
        a = max(a, fixed + ratio(k) * h + between)
        if a + h > r / m:  # all probabilities together would exceed 1
            return True
    return a + h > r / m


def least_mu(canaries: int, guesses: int, right: int, level: float) -> float:
    r"""Return the smallest $\mu$ for which $\mu$-GDP is not refuted: $1 - f(x) = \Phi(\Phi^{-1}(x) + \mu)$.

    Parameters
    ----------
    canaries, guesses, right, level
        As in `refuted`.

    Returns
    -------
    float
        $\mu$.
    """

    def inverse(mu: float) -> Inverse:
        return lambda y: float(ndtr(ndtri(min(y, 1.0)) - mu))

    return _least(lambda mu: refuted(canaries, guesses, right, level, inverse(mu)))


def least_epsilon(canaries: int, guesses: int, right: int, level: float, delta: float) -> float:
    r"""Return the smallest $\epsilon$ for which $(\epsilon, \delta)$-DP is not refuted.

    Parameters
    ----------
    canaries, guesses, right, level
        As in `refuted`.
    delta : float
        $\delta$.

    Returns
    -------
    float
        $\epsilon$.
    """

    def inverse(epsilon: float) -> Inverse:
        return lambda y: max(0.0, math.exp(-epsilon) * (y - delta), 1 - delta - math.exp(epsilon) * (1 - y))

    return _least(lambda epsilon: refuted(canaries, guesses, right, level, inverse(epsilon)))


def _least(is_refuted: Callable[[float], bool], most: float = 30.0) -> float:
    """Bisect; the returned end is refuted itself, or 0."""
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


class Guessed(NamedTuple):
    """The guesses about one run."""

    there: np.ndarray  # [canaries], which were in the data
    scores: np.ndarray  # [canaries], higher if the canary looks more present
    guesses: int
    right: int


def guess(scores: np.ndarray, there: np.ndarray) -> Guessed:
    """Guess that the canaries with the highest scores were in the data and those with the lowest were not; skip the others.

    Parameters
    ----------
    scores, there : ndarray
        [canaries] scores, and which canaries were in the data.

    Returns
    -------
    Guessed
        The number of guesses, and of right ones.
    """
    each = max(1, round(len(scores) * GUESSED / 2))
    order = np.argsort(scores, kind="stable")
    right = int(there[order[-each:]].sum() + (1 - there[order[:each]]).sum())
    return Guessed(there, scores, 2 * each, right)


class Canaries(NamedTuple):
    """Rows that can be told apart, and the model at which each has its largest gradient."""

    features: np.ndarray  # [canaries, features]; all have one label
    directions: np.ndarray  # [canaries, *model], of norm 1: the direction in which a canary moves the solution
    x0: np.ndarray


MessagesFn = Callable[[Canaries, np.ndarray], np.ndarray]


def place_canaries(setup: Setup, others: np.ndarray, classes: int, count: int, norm: float) -> Canaries:
    """Place canaries in the orthogonal directions that the other rows use least.

    Parameters
    ----------
    setup : Setup
        The attacked setup.
    others : ndarray
        [rows, features] the other rows.
    classes, count : int
        Classes, and number of canaries.
    norm : float
        The norm of a canary.

    Returns
    -------
    Canaries
        The rows, their directions, and the model.
    """
    if count > others.shape[1]:
        raise ConfigError(f"Expected at most {others.shape[1]} canaries, one per feature, got {count}.")
    directions = np.asarray(least_used(jnp.asarray(others), count))
    push = np.asarray(wrong_about(setup, classes))
    towards = -push / np.linalg.norm(push)
    return Canaries(norm * directions, towards[:, None] * directions[:, None, :], push[:, None] * directions.sum(axis=0) / norm)


def one_run(
    setup: Setup,
    examples: Examples,
    classes: int,
    *,
    rounds: Sequence[int],
    radius: float | None,
    canaries: int,
    seed: int,
    messages: MessagesFn | None = None,
) -> Guessed:
    """Put canaries into the first slots of a client, run it once, and guess which were in the data.

    Parameters
    ----------
    setup, examples, classes, rounds, radius
        As in `fedpdm.audit.attacks.attack_client`.
    canaries
        How many; at most the number of features and of examples.
    seed
        Of the coins, and of the run.
    messages
        The attacked client: `(canaries, there) -> messages [rounds, *model]`. None: a simulated client.

    Returns
    -------
    Guessed
        The guesses.

    References
    ----------
    Steinke, Nasr, Jagielski: "Privacy auditing with one (1) training run", NeurIPS 2023.
    """
    examples = alone(examples)
    if canaries > examples.features.shape[1]:
        raise ConfigError(f"Expected at most {examples.features.shape[1]} canaries, one per example, got {canaries}.")
    norm = canary_norm(setup, examples, radius)
    placed = place_canaries(setup, np.asarray(examples.features[0, canaries:]), classes, canaries, norm)
    there = np.random.default_rng([seed, 1]).integers(0, 2, canaries)

    label = telling_label(setup, -SATURATING)

    def data(chosen: np.ndarray) -> Examples:
        rows = examples.features.at[0, :canaries].set(placed.features * chosen[:, None])
        return examples._replace(features=rows, labels=examples.labels.at[0, :canaries].set(label))

    runner = Runner(setup, jnp.asarray(placed.x0, jnp.float32), jnp.asarray(rounds, jnp.int32), seed)
    nobody, everybody = data(np.zeros(canaries)), data(np.ones(canaries))
    base = runner.mean(nobody)

    def along(seen: jnp.ndarray) -> jnp.ndarray:
        return jnp.einsum("ntkd,ckd->ntc", seen - base, jnp.asarray(placed.directions, jnp.float32))

    moved = np.asarray(along(runner.mean(everybody)[None])[0], float)
    noise = runner.reduced(nobody, OWN, SIMULATED, along)[0]
    covariance = np.atleast_2d(np.cov(noise.transpose(0, 2, 1).reshape(-1, len(rounds)).T))
    if messages is None:
        seen = runner.reduced(data(there), PRESENT, 1, along)[0][0]
    else:
        seen = np.asarray(along(jnp.asarray(messages(placed, there))[None])[0], float)
    weights = np.linalg.solve(covariance + 1e-9 * np.diag(np.diag(covariance)), moved)
    return guess((weights * seen).sum(axis=0), there)
