"""The privacy boundary: the one place that adds noise, in each of the two orders.

    sound:  solve -> NOISE -> dual -> y -> message       everything after the noise is post-processing
    paper:  solve -> dual -> y -> message -> NOISE       the order of the publication; its guarantee is nominal only

A `Mechanism` is a tuple of pure functions that `client_round` calls. Each release returns its cost, the squared ratio of
sensitivity to noise, so the spending is the sum over actual releases.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.draws import fold_in
from fedpdm.errors import ConfigError
from fedpdm.privacy.noise import SecureGaussian, simulation_noise
from fedpdm.privacy.sensitivity import Number
from fedpdm.privacy.sums import Cohort, Lattice

__all__ = [
    "Mechanism",
    "Release",
    "Released",
    "Sums",
    "untouched",
    "no_privacy",
    "sound",
    "sound_every_step",
    "paper",
    "secure",
]


class Release(NamedTuple):
    """The facts known at the time of a release; in the sound mechanism all of them are public."""

    step_size: Array
    examples: Array  # the client's public size n
    steps: Array  # local steps taken
    public_slope: Array  # norm of the data-free part of the first local direction: linear term and beta term at x0
    key: Array
    gain: Any = 1.0  # tree like the message: how far it moves when the local solution moves by 1


class Released(NamedTuple):
    """A value that has passed a stage of the mechanism."""

    value: Any
    cost: Any  # (sensitivity / noise)^2; a scalar
    noise: Any  # standard deviation of the noise, in units of the local solution


class Sums(NamedTuple):
    """Functions that turn a cohort's contributions into one release (see `fedpdm.privacy.sharing`).

    Attributes
    ----------
    cohort, lattice, mean_examples
        The members of a sum, the lattice of its numbers, and the mean size of all clients: a weight is a size over this mean.
    share
        `(contribution, release) -> words`: all that leaves a member, from a flat vector to as many words.
    opened
        `(sum of words, sum of weights, members in it, release) -> Released`: the weighted mean of the contributions, flat.
    limit
        Where the unit is a whole client: the norm that a member's contribution is cut to; then all members weigh the same.
    """

    cohort: Cohort
    lattice: Lattice
    mean_examples: float
    share: Callable[[Array, Release], Array]
    opened: Callable[[Array, Array, Array, Release], Released]
    limit: Callable[[Release], Number] | None = None

    def contribution(self, moved: Array, size: Array, release: Release) -> tuple[Array, Array]:
        """Return the contribution of a member of this size without noise, and its weight; `moved` is its solution minus x0."""
        if self.limit is None:
            weight = size / self.mean_examples
            return weight * moved, weight
        length = jnp.linalg.norm(moved)
        return moved * jnp.minimum(1.0, self.limit(release) / jnp.maximum(length, 1e-30)), jnp.float32(1.0)


class Mechanism(NamedTuple):
    """A mechanism as pure functions.

    Attributes
    ----------
    release_solution
        `(x, release) -> Released`: applied to the local solution, before anything is derived from it. None: a solution leaves
        in a sum only.
    release_message
        `(message, release) -> Released`: applied to the message, last of all.
    gradient_noise
        `(release) -> (noise function of the solver, cost)`, or None: noise in every local step.
    sums
        For cohorts that share their noise: replaces `release_solution`.
    """

    mechanism: str
    release_solution: Callable[[Array, Release], Released] | None
    release_message: Callable[[Any, Release], Released]
    gradient_noise: Callable[[Release], tuple[Callable[[Array, tuple[int, ...]], Array], Array]] | None = None
    sums: Sums | None = None

    def release(self, x: Array, release: Release) -> Released:
        """Apply `release_solution`; a mechanism that has none refuses."""
        if self.release_solution is None:
            raise ConfigError("privacy.trust=cohorts lets a solution leave in a sum only: use fedpdm.rounds.cohort_round.")
        return self.release_solution(x, release)


def untouched(value: Any, release: Release) -> Released:
    """Pass a value on without noise.

    Parameters
    ----------
    value, release
        The value, and its release, which is not used.

    Returns
    -------
    Released
        The same value, with cost and noise 0.
    """
    return Released(value, jnp.float32(0.0), jnp.float32(0.0))


def no_privacy() -> Mechanism:
    """Make a mechanism without noise and without a guarantee.

    Returns
    -------
    Mechanism
        The mechanism "none".
    """
    return Mechanism("none", untouched, untouched)


def sound(sensitivity: Callable[[Release], Number], noise_multiplier: float) -> Mechanism:
    """Add Gaussian noise to the local solution, `noise_multiplier` times its sensitivity.

    Parameters
    ----------
    sensitivity
        Bound on how far one example can move the solution (add/remove), from public values alone.
    noise_multiplier
        z = sigma / sensitivity.

    Returns
    -------
    Mechanism
        The mechanism "sound".

    Formal guarantee
    ----------------
    Relation: add/remove one example of one client; adversary: anyone who sees all messages, the server included. Given
    the public history, the release of one participation is a Gaussian mechanism with sensitivity/sigma = 1/z; the dual
    and the message are functions of it and of earlier releases. By adaptive composition R participations are mu-GDP
    with mu = sqrt(R)/z. Assumes that the bound holds (`fedpdm.privacy.sensitivity`), exact arithmetic, and true
    Gaussian noise; a simulation has pseudo-random float32 noise and says so in its manifest.
    """

    def release_solution(x: Array, release: Release) -> Released:
        sigma = jnp.asarray(noise_multiplier * sensitivity(release))
        return Released(x + simulation_noise(release.key, x.shape, sigma), jnp.float32(noise_multiplier**-2), sigma)

    return Mechanism("sound", release_solution, untouched)


def sound_every_step(sensitivity: Callable[[Release], Number], noise_multiplier: float, steps: int) -> Mechanism:
    """Add Gaussian noise to the full data gradient of every local step, for losses with a clip and no other known property.

    Parameters
    ----------
    sensitivity, noise_multiplier
        As in `sound`, for the gradient of one step.
    steps
        Local steps Q of a participation.

    Returns
    -------
    Mechanism
        The mechanism "sound", with noise in the steps.

    Formal guarantee
    ----------------
    As in `sound`, with Q releases per participation: R participations are mu-GDP with mu = sqrt(R Q)/z. The solution is
    a function of the noised gradients.
    """

    def gradient_noise(release: Release) -> tuple[Callable[[Array, tuple[int, ...]], Array], Array]:
        sigma = noise_multiplier * sensitivity(release)

        def noise(step: Array, shape: tuple[int, ...]) -> Array:
            return simulation_noise(fold_in(release.key, step), shape, sigma)

        return noise, jnp.float32(steps * noise_multiplier**-2)

    def release_solution(x: Array, release: Release) -> Released:
        """Pass the solution on: it contains the noise of the steps, whose cost is counted."""
        return Released(x, jnp.float32(0.0), jnp.asarray(release.step_size * noise_multiplier * sensitivity(release)))

    return Mechanism("sound", release_solution, untouched, gradient_noise)


def paper(*, rho: float, clip: float, epsilon: float, delta: float, batch_size: int, share: float, rounds: int) -> Mechanism:
    r"""Add the noise of Theorems 1 and 2 as printed, with the actual number of steps Q.

    $s = 2 g \eta G \frac{1 - |1 - \rho\eta|^Q}{1 - |1 - \rho\eta|}$ with the gain g of the message (2 for FedPDM's y, which
    gives the paper's 4; 1 for an algorithm that sends x), per-round $\epsilon = \bar\epsilon / (q^2
    \sqrt{p T/(1 - q)})$ with $q = Q b/|D_i|$ and $p$ = `share` = K/N, $\sigma = s \sqrt{2 \ln(1.25/\delta)}/\epsilon$.

    There is NO formal guarantee: docs/privacy/published-mechanism.md lists six defects. The returned cost takes Theorem 1's
    sensitivity at face value.

    Parameters
    ----------
    rho, clip : float
        Weight of the proximal term, and G.
    epsilon, delta : float
        The nominal budget of all rounds.
    batch_size, share, rounds
        b, K/N and T.

    Returns
    -------
    Mechanism
        The mechanism "paper".
    """

    def release_message(message: Any, release: Release) -> Released:
        steps = release.steps.astype(jnp.float32)
        a = jnp.abs(1 - rho * release.step_size)
        away = jnp.where(a == 1, 0.5, a)
        s = 2 * release.step_size * clip * jnp.where(a == 1, steps, (1 - away**steps) / (1 - away))
        q = steps * batch_size / release.examples
        round_epsilon = epsilon / (q**2 * jnp.sqrt(share * rounds / (1 - q)))
        ratio = round_epsilon / jnp.sqrt(2 * jnp.log(1.25 / delta))  # s / sigma
        leaves, tree = jax.tree.flatten(message)
        gains = jax.tree.leaves(release.gain)
        keys = [release.key, *(fold_in(release.key, i) for i in range(1, len(leaves)))]
        noised = [
            leaf + simulation_noise(key, leaf.shape, gain * s / ratio)
            for leaf, key, gain in zip(leaves, keys, gains, strict=True)
        ]
        return Released(jax.tree.unflatten(tree, noised), len(leaves) * ratio**2, s / ratio)

    return Mechanism("paper", untouched, release_message)


def secure(
    sensitivity: Callable[[Release], Number],
    noise_multiplier: float,
    margin: float,
    spend: Callable[[float, float], None],
    gaussian: SecureGaussian,
) -> Mechanism:
    """Make `sound` for real data: noise from the operating system's randomness on a lattice, drawn on the host.

    Parameters
    ----------
    sensitivity, noise_multiplier
        As in `sound`.
    margin
        The most that rounding can add to the sensitivity: see `fedpdm.privacy.rounding`.
    spend
        `(sensitivity, sigma)`, called before the noise is drawn; it records the release, or raises.
    gaussian
        The lattice.

    Returns
    -------
    Mechanism
        The mechanism "sound" of a deployed client.

    Formal guarantee
    ----------------
    That of `sound` with z = `noise_multiplier`, without its assumptions on arithmetic and noise: the sensitivity includes
    the error of the float64 solver (`margin`), of the bound itself in float32 or better (a share of (Q + 20) 2^-23), and of
    the rounding onto the lattice (`SecureGaussian`). The recorded pair (sensitivity, sigma) has the ratio z.
    """

    def release_solution(x: Any, release: Release) -> Released:
        private = gaussian.within(x)
        share = 1 + (int(release.steps) + 20) * 2.0**-23
        public = release._replace(**{name: float(getattr(release, name)) for name in ("step_size", "examples", "public_slope")})
        bound = float(sensitivity(public)) * share + margin
        sigma = gaussian.sigma_for(noise_multiplier, bound, private.size)
        spend(bound, gaussian.noise_multiplier(sigma, bound, private.size) * bound)
        noised = gaussian.release(private, sigma).astype(np.float32)
        return Released(noised, np.float32(noise_multiplier**-2), np.float32(sigma))

    return Mechanism("sound", release_solution, untouched)
