"""Secure sums in the privacy boundary: how a member makes its share, and how the opened sum is read.

The arithmetic is that of a deployment: vectors are flat, rotated, rounded to whole numbers of lattice steps, in words of 32
bits, and added up modulo 2^bits. NumPy and JAX arrays are taken alike, so that a simulation and a real member run the same
lines; a simulation leaves out the masks.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.privacy.mechanism import Mechanism, Release, Released, Sums, untouched
from fedpdm.privacy.noise import simulation_noise
from fedpdm.privacy.rotation import rotate, rotate_back
from fedpdm.privacy.sensitivity import Number
from fedpdm.privacy.sums import MOST_BITS, Cohort, Lattice, share_sigma

__all__ = ["to_words", "from_words", "member_sensitivity", "round_up_or_down", "shared"]


def to_words(steps: Any, bits: int) -> Any:
    """Turn whole numbers of lattice steps into words modulo 2^bits.

    Parameters
    ----------
    steps : array
        Whole numbers.
    bits : int
        Bits of the modulus.

    Returns
    -------
    array
        Words of 32 bits.

    Examples
    --------
    >>> to_words(np.array([-1, 3], np.int32), 8).tolist()
    [255, 3]
    """
    return steps.astype("uint32") & np.uint32(2**bits - 1)


def from_words(words: Any, bits: int) -> Any:
    """Turn words back into numbers in [-2^(bits - 1), 2^(bits - 1)).

    Parameters
    ----------
    words : array
        Words of 32 bits.
    bits : int
        Bits of the modulus.

    Returns
    -------
    array
        Whole numbers of lattice steps.

    Examples
    --------
    >>> total = to_words(np.array([-5, 100], np.int32), 8) + to_words(np.array([2, 100], np.int32), 8)
    >>> from_words(total, 8).tolist()  # 200 does not fit into 8 bits: it wraps
    [-3, -56]
    """
    unused = MOST_BITS - bits
    return (words << np.uint32(unused)).astype("int32") >> np.int32(unused)


def round_up_or_down(steps: Any, draws: Any) -> Any:
    """Round up where a draw is below the fractional part, else down: the mean over draws is the number itself.

    Parameters
    ----------
    steps, draws
        NumPy or JAX arrays: numbers of lattice steps, and draws from [0, 1).

    Returns
    -------
    array
        Whole numbers, as floating-point numbers.

    Examples
    --------
    >>> round_up_or_down(np.array([1.25, -1.25, 2.0]), np.array([0.2, 0.9, 0.0])).tolist()
    [2.0, -2.0, 2.0]
    """
    below = steps // 1
    return below + (draws < steps - below)


def member_sensitivity(bound: Callable[[Release], Number], sizes: np.ndarray) -> Callable[[Release], Number]:
    r"""Return the sensitivity of the contribution $\frac{n_i}{\bar n}(x_i - x_0)$, the largest over all members.

    Parameters
    ----------
    bound
        Sensitivity of the solution of a member with `release.examples` examples.
    sizes
        The public sizes $n_i$ of all clients.

    Returns
    -------
    callable
        `release -> sensitivity`.
    """
    different = np.unique(np.asarray(sizes, np.float32))
    weights = different / np.float32(np.mean(sizes))

    def sensitivity(release: Release) -> Number:
        return jnp.max(jnp.asarray(weights) * bound(release._replace(examples=jnp.asarray(different))))

    return sensitivity


def shared(
    sensitivity: Callable[[Release], Number],
    noise_multiplier: float,
    dimension: int,
    cohort: Cohort,
    lattice: Lattice,
    mean_examples: float,
    whole_clients: bool = False,
) -> Mechanism:
    """Make the mechanism of shared noise: every member adds its part to its own contribution, and only the sum is visible.

    Parameters
    ----------
    sensitivity
        Bound on how far one example can move a member's contribution (see `member_sensitivity`).
    noise_multiplier
        z of the sum, from the shares of the cohort's honest members alone.
    dimension
        Coordinates of a contribution.
    cohort, lattice
        The members that share the noise, and the lattice of the sum.
    mean_examples
        The mean size of all clients.
    whole_clients
        The unit is a whole client: a contribution is cut to the norm `sensitivity`, so that none moves a sum by more.

    Returns
    -------
    Mechanism
        The mechanism "sound" with `sums`.

    Formal guarantee
    ----------------
    Theorem S1 of docs/secure-sums.md; unit, relation, adversary and assumption are at the head of `fedpdm.privacy.sums`. A
    simulation has rounded float32 normals instead of discrete Gaussians, and says so in its manifest.
    """

    def share(contribution: Array, release: Release) -> Array:
        sigma = share_sigma(noise_multiplier, sensitivity(release), dimension, cohort.honest, lattice.scale)
        rounding_key, noise_key = jax.random.split(release.key)
        noise = simulation_noise(noise_key, contribution.shape, sigma * lattice.scale)
        draws = jax.random.uniform(rounding_key, contribution.shape)
        steps = round_up_or_down(rotate(contribution) * lattice.scale, draws)
        return to_words(steps.astype(jnp.int32) + jnp.rint(noise).astype(jnp.int32), lattice.bits)

    def opened(words: Array, weight: Array, count: Array, release: Release) -> Released:
        weight = jnp.maximum(weight, 1e-6)  # 0 if no member is present; the sum of such a cohort is not used
        sigma = share_sigma(noise_multiplier, sensitivity(release), dimension, cohort.honest, lattice.scale)
        mean = rotate_back(from_words(words, lattice.bits) / (lattice.scale * weight))
        return Released(mean, jnp.float32(noise_multiplier**-2), jnp.asarray(sigma * jnp.sqrt(count) / weight))

    limit = sensitivity if whole_clients else None
    return Mechanism("sound", None, untouched, sums=Sums(cohort, lattice, mean_examples, share, opened, limit))
