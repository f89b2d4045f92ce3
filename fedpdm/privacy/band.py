r"""How far from a public point an honest client's noised solution can be: the band.

A client starts at the public $x_0$ and takes Q steps along its data gradient and a public direction. Its data gradient has a
norm of at most C, whatever the rows (`Plan.clip`). So its solution is within a radius B of the public point z where a client
with a zero data gradient ends, and it sends this solution plus Gaussian noise of a known standard deviation. The distance
from z then has an upper limit, and a lower one that only a message without its noise misses.

Formal guarantee
----------------
An honest message is outside the limits with a probability of at most `failure`, whatever the data and the history. Proofs:
docs/hostile-clients.md. They use a tail bound of the noncentral chi-square distribution (Birgé, 2001, Lemma 8.1), which is also
true for discrete Gaussian noise at the upper end.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedpdm.privacy import sensitivity as bounds
from fedpdm.privacy.sensitivity import Curvature, Number
from fedpdm.privacy.sums import SMOOTHING, rounded

__all__ = ["FAILURE", "Band", "Limits", "limits", "radius", "chi_most", "chi_least", "rounding_in_sums"]

FAILURE = 1e-6  # probability that an honest message is refused
ROUNDING = 1e-4  # relative error of a local solve in float32, far above what is seen


class Band(NamedTuple):
    """What is public about every client's local solve.

    Attributes
    ----------
    mode : str
        That of the plan; "steps" without a mechanism.
    clip : float
        C, the largest norm of a client's data gradient.
    curvature : Curvature
        Of the local problem.
    steps : int
        Q.
    tolerance : float
        The norm of the gradient at which a solve may stop; 0: never before Q steps.
    failure : float
        See above.
    shares : tuple of float and int, optional
        Where the message is that of a cohort: the noise multiplier of its sum, and the shares that it counts on.
    compared : bool
        Whether the sums of a round are also held against each other (`fedpdm.hostile.comparing`).
    """

    mode: str
    clip: float
    curvature: Curvature
    steps: int
    tolerance: float = 0.0
    failure: float = FAILURE
    shares: tuple[float, int] | None = None
    compared: bool = False


class Limits(NamedTuple):
    """The least and the largest distance from the public point that an honest client's message can have."""

    least: Array
    most: Array


def chi_most(dimension: Number, reach: Number, sigma: Number, failure: float) -> Array:
    r"""A length that $\|m + \sigma g\|$ exceeds with probability `failure` at most, for $\|m\| \le$ `reach`, g Gaussian.

    With $x = \ln(1/\text{failure})$ it is the root of
    $d\sigma^2 + m^2 + 2\sigma\sqrt{x\,(d\sigma^2 + 2m^2)} + 2x\sigma^2$.

    Parameters
    ----------
    dimension : int
        Number of coordinates.
    reach, sigma : float or Array
        Bound on the mean, and standard deviation of the noise.
    failure : float
        The probability.

    Returns
    -------
    Array
        The length.
    """
    x, s, m = math.log(1 / failure), jnp.asarray(sigma) ** 2, jnp.asarray(reach) ** 2
    return jnp.sqrt(dimension * s + m + 2 * jnp.sqrt(x * s * (dimension * s + 2 * m)) + 2 * x * s)


def chi_least(dimension: Number, sigma: Number, failure: float, of: Number | None = None) -> Array:
    r"""A length that $\|m + \sigma g\|$ falls below with probability `failure` at most, whatever m.

    The square is stochastically smallest for m = 0, where it is $\sigma^2$ times chi-square:
    $P(\chi^2_k \le k y) \le \exp(\frac k2 (1 - y + \ln y))$ for y < 1. If the k coordinates were chosen out of `of` in whatever
    way, the union over all $\binom{of}{k} \le (e\,of/k)^k$ choices is taken.

    Parameters
    ----------
    dimension : int
        Number of coordinates k.
    sigma : float or Array
        Standard deviation of the noise.
    failure : float
        The probability.
    of : int, optional
        Number of coordinates that the k were chosen from by their values.

    Returns
    -------
    Array
        The length.
    """
    k = jnp.asarray(dimension, jnp.float32)
    choices = 0.0 if of is None else k * (1 + jnp.log(of / k))
    # For y < 1 the exponent is below (k/2)(1 + ln y) and below -(k/4)(1 - y)^2: the better of two simple answers.
    need = (math.log(1 / failure) + choices) * 2 / k
    y = jnp.maximum(jnp.exp(-1 - need), 1 - jnp.sqrt(2 * need))
    return sigma * jnp.sqrt(k * jnp.clip(y, 0.0, 1.0))


def radius(band: Band, step_size: Number, public_slope: Number) -> Array:
    r"""B: how far any data can move the solution from the public point.

    Two runs that differ by data gradients of norm at most C are apart by at most $\eta C \sum_{r<Q} c_0^r$ after Q steps, $c_0$
    being the contraction of the data-free part. A certified solve is within $(C + \tau)/(w - \beta/2)$ of the minimiser
    without data, $\tau$ being the gradient's norm that it is sure to reach.

    Parameters
    ----------
    band : Band
        The public facts.
    step_size, public_slope : float or Array
        Step size, and norm of the data-free direction at the start.

    Returns
    -------
    Array
        The radius B.
    """
    if band.mode == "certified":
        reached = bounds.reached(band.clip, band.curvature, band.tolerance, step_size, band.steps, public_slope)
        return jnp.asarray((band.clip + reached) / band.curvature.lowest)
    if band.mode in ("linearised", "client"):
        return jnp.asarray(bounds.linearised(band.clip, band.curvature.weight, step_size, band.steps, 1.0))
    free = band.curvature._replace(smoothness=0.0)
    return jnp.asarray(bounds.contractive(band.clip, free, step_size, band.steps, 1.0))


def rounding_in_sums(band: Band, dimension: int) -> float:
    r"""Bound what rounding adds to the variance of a cohort's noise, as a share of it.

    A member rounds its contribution up or down, and a simulated one also its noise: per coordinate a sub-Gaussian error of
    variance at most 1/4 each, in squared lattice steps. A share of noise has at least $\sqrt{(z s'_0)^2 + 9}/\sqrt H$ steps,
    $s'_0$ being `fedpdm.privacy.sums.rounded` of a sensitivity of 0. A deployed share exceeds its bound by $2^{-15}$.

    Parameters
    ----------
    band : Band
        What is public.
    dimension : int
        Coordinates of a contribution.

    Returns
    -------
    float
        The share; 0 for messages of single clients.
    """
    if band.shares is None:
        return 0.0
    z, honest = band.shares
    steps_squared = ((z * float(rounded(0.0, dimension, 1))) ** 2 + SMOOTHING**2) / honest
    return 0.5 / steps_squared + 2.0**-14


def limits(
    band: Band,
    reach: Array,
    sigma: Array,
    step_size: Array,
    dimension: Number,
    *,
    chosen_of: Number | None = None,
    slack: Array | float = 0.0,
    rounding: float = 0.0,
) -> Limits:
    """The band of one message.

    Parameters
    ----------
    band : Band
        What is public.
    reach, sigma, step_size : Array
        B, the noise's standard deviation (of one step, in mode "every-step"), and the step size.
    dimension : int
        Coordinates that are compared.
    chosen_of : int, optional
        They were chosen by their noised values, out of so many.
    slack : Array or float
        What rounding can move a message by.
    rounding : float
        As `rounding_in_sums` returns it.

    Returns
    -------
    Limits
        The least and the largest distance.
    """
    most_dimension, each = dimension if chosen_of is None else chosen_of, band.failure / 2
    slack = slack + ROUNDING * reach
    if band.mode != "every-step":
        most = chi_most(most_dimension, reach, sigma * math.sqrt(1 + rounding), each)
        least = chi_least(dimension, sigma, each, chosen_of)
    else:
        # Later gradients depend on earlier noise, so norms are added instead of squares.
        free = bounds.contraction(band.curvature._replace(smoothness=0.0), step_size)
        powers = jnp.asarray(free) ** jnp.arange(band.steps)
        if band.curvature.beta:
            noise = step_size * jnp.sum(powers) * chi_most(most_dimension, 0.0, sigma, each / band.steps)
            most, least = reach + noise, jnp.zeros(())
        else:
            spread = sigma * step_size * jnp.sqrt(jnp.sum(powers**2))
            most = reach + chi_most(most_dimension, 0.0, spread, each)
            least = chi_least(dimension, spread, each, chosen_of) - reach
    return Limits(jnp.maximum(least - slack, 0.0), most + slack)
