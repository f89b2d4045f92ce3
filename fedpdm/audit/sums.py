"""Attacks on secure sums: what a server sees that works with t members, and the variant that is refused.

The adversary knows everybody's rows but the canary, and the noise of the members that work with it. It subtracts all that from
a sum. What is left is the victim's own share and the noise of H - 1 other honest members: `seen_by_adversary` makes exactly
that, with the functions that training calls, for the attacks of `fedpdm.audit.attacks`.
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
    """The setup as the attacked member's messages look to a server that subtracts all that it knows from the sums.

    Parameters
    ----------
    setup
        With a mechanism that has `sums`; others are returned as they are.
    x0
        The model that the server sends.
    noisy_members
        How many honest members add their share of noise; H if not given. Fewer is sabotage, for controls.
    """
    sums = setup.privacy.sums
    if sums is None:
        return setup
    count = sums.cohort.honest if noisy_members is None else noisy_members

    def release_solution(x: Array, release: Release) -> Released:
        weight = release.examples / sums.mean_examples
        keys = jax.vmap(lambda member: jax.random.fold_in(release.key, member))(jnp.arange(count))
        words = sums.share(weight * (x - x0), release._replace(key=keys[0]))
        others = jax.vmap(lambda key: sums.share(jnp.zeros_like(x), release._replace(key=key)))(keys[1:])
        words = words + jnp.sum(others, axis=0, dtype=jnp.uint32)
        opened = sums.opened(words, weight, jnp.float32(count), release)
        return opened._replace(value=x0 + opened.value)

    return setup._replace(privacy=Mechanism("sound", release_solution, setup.privacy.release_message))


class OwnDuals(NamedTuple):
    """What the attack on own duals under changing cohorts found, in standard deviations of its statistic."""

    claimed: float  # what Theorem S1 would say, if it covered this
    possible: float  # of the best linear statistic, computed from the model
    measured: float  # of the statistic that was learned on the first half of the runs, on the second half


def attack_own_duals(
    *, members: int = 20, later_rounds: int = 12, forgetting: float = 0.5, mu: float = 0.3, runs: int = 20_000, seed: int = 0
) -> OwnDuals:
    r"""The refused variant: every member of FedPDM moves a dual of its own by its own noised solution; cohorts change.

    The victim takes part once. Then the server puts another member in its place, and lets the rest go on. Every later sum holds
    the others' earlier noise again, through their duals: the server learns it, and takes it off the victim's only sum. All
    numbers are along the canary's direction, the only one that matters.

    Parameters
    ----------
    members
        H: honest members of a sum.
    later_rounds
        Rounds without the victim.
    forgetting
        $\kappa = 1 - \rho\eta$ of one linearised step: how much of a dual stays.
    mu
        Shift of the one sum, in its standard deviations, that Theorem S1 would allow.
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
    """The sums as a linear function of all noise: a column per draw."""
    unit = np.eye(rounds * members).reshape(-1, rounds, members)
    return sums_with(0.0, unit).T
