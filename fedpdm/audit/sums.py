"""Attacks on secure sums: the view of a server that works with t members, and the variant that is refused.

The adversary knows everybody's rows but the canary, and the noise of the members that work with it. It subtracts all of this
from a sum. The rest is the victim's own share and the noise of H - 1 other honest members. `seen_by_adversary` computes exactly
this rest, with the functions that training calls, for the attacks of `fedpdm.audit.attacks`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.algorithms import fedpdm
from fedpdm.algorithms.base import Broadcast
from fedpdm.privacy.mechanism import Mechanism, Release, Released
from fedpdm.rounds import Setup

__all__ = ["OwnDuals", "attack_own_duals", "seen_by_adversary"]


def seen_by_adversary(setup: Setup, x0: Array, noisy_members: int | None = None) -> Setup:
    """Return the setup with the messages that remain after a server subtracts everything it knows from the sums.

    Parameters
    ----------
    setup
        A setup whose mechanism has `sums`; others are returned unchanged.
    x0
        The model that the server sends.
    noisy_members
        How many honest members add their share of noise; by default H. A smaller number is a broken variant, for controls.

    Returns
    -------
    Setup
        The setup to attack.
    """
    sums = setup.privacy.sums
    if sums is None:
        return setup
    count = sums.cohort.honest if noisy_members is None else noisy_members

    def release_solution(x: Array, release: Release) -> Released:
        moved, weight = sums.contribution(x - x0, release.examples, release)
        keys = jax.vmap(lambda member: jax.random.fold_in(release.key, member))(jnp.arange(count))
        words = sums.share(moved.ravel(), release._replace(key=keys[0]))
        others = jax.vmap(lambda key: sums.share(jnp.zeros(x.size), release._replace(key=key)))(keys[1:])
        words = words + jnp.sum(others, axis=0, dtype=jnp.uint32)
        opened = sums.opened(words, weight, jnp.float32(count), release)
        return opened._replace(value=x0 + opened.value.reshape(x.shape))

    return setup._replace(privacy=Mechanism("sound", release_solution, setup.privacy.release_message))


class OwnDuals(NamedTuple):
    """The result of the attack on own duals under changing cohorts, in standard deviations of its statistic."""

    claimed: float  # the figure of Theorem S1, if it covered this variant
    possible: float  # the best linear statistic, computed from the model
    measured: float  # the statistic learned on the first half of the runs, measured on the second half


def attack_own_duals(
    *, members: int = 20, later_rounds: int = 12, forgetting: float = 0.5, mu: float = 0.3, runs: int = 20_000, seed: int = 0
) -> OwnDuals:
    r"""Attack the refused variant: each member moves its own dual by its own noised solution, and cohorts change.

    The victim takes part once. Then the server puts another member in its place, and lets the rest go on. The duals of a group
    that stays together add up to a number that the server knows but for the victim's part: every sum moves them by itself. Each
    of T later sums is $1 - \kappa$ times that number plus fresh noise of variance H, so that the victim's share is known with
    precision $P = 1/(H-1) + T (1-\kappa)^2/H$, and the shift is $\sqrt{H/(1 + 1/P)}$ times the claim: up to $\sqrt H$, with
    time. All numbers are along the canary's direction, the only one that matters.

    Parameters
    ----------
    members
        H: honest members of a sum.
    later_rounds
        Rounds without the victim.
    forgetting
        $\kappa = 1 - \rho\eta$ of one linearised step: the share of a dual that stays.
    mu
        Shift of the one sum, in its standard deviations, that Theorem S1 would allow.
    runs, seed
        Runs with and without the canary, and the seed of the noise.

    Returns
    -------
    OwnDuals
        The claimed, the possible and the measured shift.
    """
    rho, rng = 1.0, np.random.default_rng(seed)
    step, algorithm = (1 - forgetting) / rho, fedpdm(rho=rho)
    zero = jnp.float32(0.0)
    signal = mu * math.sqrt(members)  # of the victim's solution, for shares of noise 1

    def sums_with(canary: float, noise: np.ndarray) -> np.ndarray:
        duals = np.zeros((len(noise), members + 1))  # the last one takes the victim's place, which is the first
        seen = []
        for t in range(later_rounds + 1):
            here = np.arange(members + 1) != (members if t == 0 else 0)
            gradient = np.where(np.arange(members + 1) == 0, -canary / step, 0.0)
            solutions = -step * (gradient - duals) + noise[:, t]
            kept = algorithm.init_client(zero)._replace(dual=duals)
            state, _ = algorithm.client_update(kept, Broadcast(zero), solutions, zero)
            duals = np.where(here, state.dual, duals)
            seen.append(solutions[:, here].sum(axis=1))
        return np.stack(seen, axis=1)

    draws = [rng.normal(size=(runs, later_rounds + 1, members + 1)) for _ in range(2)]
    present, absent = sums_with(signal, draws[0]), sums_with(0.0, draws[1])
    direction = sums_with(signal, 0 * draws[0][:1])[0]
    half = runs // 2
    weights = np.linalg.solve((np.cov(present[:half].T) + np.cov(absent[:half].T)) / 2, direction)
    scores = present[half:] @ weights, absent[half:] @ weights
    spread = math.sqrt((scores[0].var() + scores[1].var()) / 2)
    linear = _response(sums_with, later_rounds + 1, members + 1)
    possible = math.sqrt(direction @ np.linalg.solve(linear @ linear.T, direction))
    return OwnDuals(mu, possible, float(scores[0].mean() - scores[1].mean()) / spread)


def _response(sums_with: Callable[[float, np.ndarray], np.ndarray], rounds: int, members: int) -> np.ndarray:
    """Return the sums as a linear function of all noise: a column per draw."""
    unit = np.eye(rounds * members).reshape(-1, rounds, members)
    return sums_with(0.0, unit).T
