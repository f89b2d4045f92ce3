"""Attacks on a client's messages: two neighbouring data sets, and one number per run that tells them apart.

The adversary is the server of the threat model: it sees every message, chooses the public x0, and knows all settings and
every other example. Each attack makes its pair of data sets, lets `fedpdm.rounds.client_round` produce the messages of
many runs on both, and reduces a run to one score. A higher score means that the run looks more like the one with the canary.

    dual      likelihood of all messages together, on a client that holds only the canary (the dual remembers it)
    canary    the same among the client's own examples, at an x0 where the canary's gradient has its largest norm
    steps     the size of the noise, which reveals a number of local steps that depends on the data
    support   whether one coordinate is sent (it is selected before the noise is added)
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import logsumexp

from fedpdm.algorithms.local import Examples
from fedpdm.audit.runner import ABSENT, CHUNK, DRAWS, OWN, Pair, Runner
from fedpdm.compression.links import Links
from fedpdm.privacy.accounting import Relation
from fedpdm.rounds import Setup

__all__ = [
    "ATTACKS",
    "Scores",
    "sparsified",
    "attack_client",
    "alone",
    "canary_norm",
    "least_used",
    "telling_label",
    "wrong_about",
]

ATTACKS = ("dual", "steps", "support", "canary")
SATURATING = 8.0  # score of a wrong class at which the loss's slope is 0.999 of its largest
TILT = 0.1  # sine of the angle between a replaced canary and the direction that identifies it


class Scores(NamedTuple):
    """One number per run on each data set; the first halves choose the statistic and the threshold."""

    present: np.ndarray
    absent: np.ndarray
    face_value: float  # sqrt of the summed (sensitivity / noise)^2 that the mechanism itself reports
    shift: float | None = None  # of the best linear statistic, in its standard deviations, on the second halves


def sparsified(setup: Setup) -> Setup:
    """Return the setup with half of the coordinates sent, or unchanged if its links are sparse already.

    In the paper's order (Algorithm 2) the indices are chosen from un-noised values and sent without noise. In the sound order
    the values are noised already, and selection is post-processing.

    Parameters
    ----------
    setup : Setup
        The setup to attack.

    Returns
    -------
    Setup
        The sparse setup.
    """
    if setup.links.uplink < 1:
        return setup
    return setup._replace(links=Links("topk" if setup.privacy.mechanism == "paper" else "noisy-topk", uplink=0.5))


def attack_client(
    setup: Setup,
    examples: Examples,
    classes: int,
    *,
    attack: str,
    relation: Relation,
    rounds: Sequence[int],
    radius: float | None,
    runs: int,
    seed: int,
) -> Scores:
    """Run one of `ATTACKS` on a client that takes part in `rounds`.

    Slot 0 belongs to the canary. Under "add-remove" it is filled or empty; under "replace-one" it holds the canary or its
    opposite ("steps" and "support": or an example without features). "support" needs the first round only.

    Parameters
    ----------
    setup, examples, classes, attack, radius, runs, seed
        As in `fedpdm.audit.audit.audit`.
    relation, rounds
        Of the claim.

    Returns
    -------
    Scores
        One number per run on each data set.
    """
    examples = alone(examples)
    norm = canary_norm(setup, examples, radius)
    when = jnp.asarray(rounds, jnp.int32)
    x0 = jnp.zeros((classes, examples.features.shape[-1]))
    if attack == "support":
        return _support(Runner(sparsified(setup), x0, when[:1], seed), examples, norm, runs)
    if attack == "steps":
        pair = _pair(_quiet(examples), x0, jnp.zeros(x0.shape[1]).at[0].set(norm), telling_label(setup, 0.0))
        return _steps(Runner(setup, x0, when, seed), pair, runs)
    make = _dual_pair if attack == "dual" else _canary_pair
    pair = make(setup, examples, x0, norm, relation, radius)
    return _likelihood(Runner(setup, pair.x0, when, seed), pair, runs)


def alone(examples: Examples) -> Examples:
    """Return the one client's rows, in arrays that hold no other client.

    Parameters
    ----------
    examples : Examples
        Arrays of many clients.

    Returns
    -------
    Examples
        Arrays of one client.
    """
    c, size = int(examples.client), int(examples.sizes[examples.client])
    features, labels = jnp.asarray(examples.features[c, :size])[None], jnp.asarray(examples.labels[c, :size])[None]
    return Examples(features, labels, jnp.array([size], jnp.int32), jnp.int32(0))


def canary_norm(setup: Setup, examples: Examples, radius: float | None) -> float:
    """Return the norm of the canary.

    Parameters
    ----------
    setup, examples
        The attacked client.
    radius : float, optional
        The bound on the norm of rows.

    Returns
    -------
    float
        The radius. Without one, a norm with which the canary alone decides the direction of a clipped batch gradient.
    """
    largest = float(jnp.sqrt(jnp.max(jnp.sum(examples.features**2, axis=-1))))
    return radius or 10.0 * max(setup.local.batch_size, 1) * max(largest, 1.0)


def least_used(others: Array, count: int) -> Array:
    """Return orthonormal directions in which the other examples are smallest.

    Parameters
    ----------
    others : Array
        [rows, features].
    count : int
        Number of directions.

    Returns
    -------
    Array
        [count, features].
    """
    rows = np.asarray(others, np.float64)
    return jnp.asarray(np.linalg.eigh(rows.T @ rows)[1][:, :count].T, jnp.float32)


def telling_label(setup: Setup, score: float) -> float:
    """The label of an example with this score whose loss has the largest slope; of classes it is always the first.

    Parameters
    ----------
    setup : Setup
        Gives the loss.
    score : float
        The score.

    Returns
    -------
    float
        The label.
    """
    loss = setup.problem.loss
    if loss.target == "classes" or loss.slopes is None:
        return 0
    labels = jnp.array([0.0, 1.0, -1.0] if loss.target == "time" else [0.0, 1.0])
    slopes = loss.slopes(jnp.full((1, len(labels)), score), labels, jnp.ones(len(labels)))[0]
    return float(labels[jnp.argmax(jnp.abs(slopes))])


def wrong_about(setup: Setup, classes: int) -> Array:
    """Return scores for an example of class 0 at which its loss has the largest slope.

    Parameters
    ----------
    setup : Setup
        Gives the loss.
    classes : int
        Number of classes.

    Returns
    -------
    Array
        [classes] scores; of a number its one score.
    """
    if classes == 1:
        return jnp.array([-SATURATING])
    wrong = 0.0 if setup.problem.loss.name == "logistic" else 1.0  # the logistic loss knows the true class only
    return SATURATING * jnp.zeros(classes).at[0].set(-1.0).at[1].set(wrong)


def _pair(examples: Examples, x0: Array, canary: Array, label: float, other: Array | None = None) -> Pair:
    """Make the pair: slot 0 with the canary, and with the `other` row. A row without features has no gradient."""
    labels = examples.labels.at[0, 0].set(label)
    present, absent = (
        examples._replace(features=examples.features.at[0, 0].set(row), labels=labels)
        for row in (canary, jnp.zeros_like(canary) if other is None else other)
    )
    return Pair(present, absent, x0)


def _quiet(examples: Examples) -> Examples:
    """Return as many examples, all without a gradient."""
    return examples._replace(features=jnp.zeros_like(examples.features))


def _dual_pair(setup: Setup, examples: Examples, x0: Array, norm: float, relation: Relation, radius: float | None) -> Pair:
    """Make a pair with only the canary. If a tolerance ends the steps, its gradient is just below: one step, little noise."""
    if setup.local.tolerance and radius is None:
        norm = min(norm, 1.9 * setup.local.batch_size * math.sqrt(setup.local.tolerance))
    canary = jnp.zeros(x0.shape[1]).at[0].set(norm)
    label = telling_label(setup, 0.0)
    return _pair(_quiet(examples), x0, canary, label, -canary if relation == "replace-one" else None)


def _canary_pair(setup: Setup, examples: Examples, x0: Array, norm: float, relation: Relation, radius: float | None) -> Pair:
    """Put the canary among the client's own examples, at an x0 that is wrong about it: its loss has the largest slope there.

    Replace-one: the two rows are almost opposite, and both have a small part along a second direction, the only one that x0
    looks at. So x0 is wrong about both, and their gradients are almost opposite and as large as possible.
    """
    push = wrong_about(setup, x0.shape[0])[:, None]
    if relation == "add-remove":
        (direction,) = least_used(examples.features[0, 1:], 1)
        return _pair(examples, push * direction / norm, norm * direction, telling_label(setup, -SATURATING))
    along, judged = least_used(examples.features[0, 1:], 2)
    large, small = norm * math.sqrt(1 - TILT**2) * along, norm * TILT * judged
    label = telling_label(setup, -SATURATING)
    return _pair(examples, push * judged / (norm * TILT), small + large, label, small - large)


def _likelihood(runner: Runner, pair: Pair, runs: int) -> Scores:
    """Score runs by the likelihood ratio of the messages along the known differences of their means.

    A full batch has one mean per round and data set. Secret batches have many: then the ratio is that of two mixtures
    over batches that the adversary draws itself. The covariance of the noise comes from the first half of the runs.
    """
    mean, base = runner.mean(pair.present), runner.mean(pair.absent)
    lengths = jnp.sqrt(jnp.sum((mean - base) ** 2, axis=(1, 2)))
    units = (mean - base) / jnp.maximum(lengths, 1e-30)[:, None, None]

    def along(messages: Array) -> Array:
        return jnp.sum((messages - base) * units, axis=(2, 3))

    present, absent, face_value = runner.both(pair, runs, along)
    half = runs // 2
    total = (np.cov(present[:half].T) + np.cov(absent[:half].T)) / 2
    white = _whitening(total)
    weights = white @ (white.T @ np.asarray(lengths, float))
    linear = Scores(present @ weights, absent @ weights, face_value)
    linear = linear._replace(shift=_shift(linear.present[half:], linear.absent[half:]))
    if not runner.random_batches:
        return linear
    silent = runner.reduced(pair.absent, ABSENT, half, along, noisy=False)[0]  # the same batches without the noise
    white = _whitening(np.cov((absent[:half] - silent).T))
    likely, unlikely = (runner.reduced(data, OWN, runner.draws, along, False)[0] @ white for data in pair[:2])
    ratios = [_mixture(seen @ white, likely) - _mixture(seen @ white, unlikely) for seen in (present, absent)]
    return Scores(ratios[0], ratios[1], face_value, linear.shift)


def _whitening(covariance: np.ndarray) -> np.ndarray:
    """Return a matrix W with W W' the inverse of the covariance; rounds may differ in scale by many orders."""
    covariance = np.atleast_2d(covariance)
    scale = 1 / np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    correlation = covariance * np.outer(scale, scale) + 1e-9 * np.eye(len(scale))
    return scale[:, None] * np.linalg.inv(np.linalg.cholesky(correlation)).T


def _mixture(seen: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Return the log of the mean over `means` of the Gaussian density (unit covariance, up to a common factor) at each row."""
    blocks = np.array_split(seen, max(1, len(seen) * len(means) // CHUNK))
    return np.concatenate([logsumexp(block @ means.T - (means**2).sum(axis=1) / 2, axis=1) for block in blocks])


def _shift(present: np.ndarray, absent: np.ndarray) -> float | None:
    spread = math.sqrt((present.var() + absent.var()) / 2)
    return float(present.mean() - absent.mean()) / spread if spread else None


def _steps(runner: Runner, pair: Pair, runs: int) -> Scores:
    """Score runs by how much the size of any round's message differs from the size without the canary."""
    base = runner.mean(pair.absent)
    present, absent, face_value = runner.both(pair, runs, lambda m: jnp.log(jnp.mean((m - base) ** 2, axis=(2, 3)) + 1e-30))
    usual = np.median(absent[: runs // 2], axis=0)
    return Scores(np.abs(present - usual).max(axis=1), np.abs(absent - usual).max(axis=1), face_value)


def _support(runner: Runner, examples: Examples, norm: float, runs: int) -> Scores:
    """Score runs by whether they send a coordinate that the canary moves and that is sent least often without it."""
    columns = runner.x0.shape[1]
    empty = _pair(examples, runner.x0, jnp.zeros(columns), 0).absent
    sent = runner.reduced(empty, OWN, DRAWS, lambda m: m[:, 0] != 0)[0].mean(axis=0).ravel()
    row, column = divmod(sent.size - 1 - int(np.argmin(sent[::-1])), columns)  # the last of equal ones
    pair = _pair(examples, runner.x0, jnp.zeros(columns).at[column].set(norm), row)
    return Scores(*runner.both(pair, runs, lambda m: m[:, 0, row, column] != 0))
