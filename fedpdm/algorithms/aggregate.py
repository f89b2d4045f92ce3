"""How the server makes one vector from many: the mean, and aggregates that a few hostile clients cannot move far.

Every algorithm aggregates through one of these functions. They take the values of the participants, who of them is present (or
which coordinates arrived), and the participants' shares of the objective. `fedpdm.choices.AGGREGATES` lists all of them;
docs/hostile-clients.md shows what each one withstands.
"""

from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.compression.exchange import like
from fedpdm.problem.sums import add_up

__all__ = [
    "Aggregator",
    "element_wise_mean",
    "mean",
    "trimmed_mean",
    "median",
    "geometric_median",
    "clipped_mean",
    "remembered",
]

WEISZFELD_STEPS = 32  # from the coordinate-wise median; a change of the last digits is left after about 20
NEAR = 1e-6  # of the mean distance: a point that close does not pull harder than from there
TINY = 1e-30


class Aggregator(Protocol):
    """`(values [participants, ...], present, shares) -> [...]`; `present` may be per coordinate; zero if nobody is present."""

    def __call__(self, values: Array, present: Array, shares: Array | None = None, /) -> Array: ...


def element_wise_mean(values: Array, present: Array, shares: Array | None = None) -> Array:
    """Return the mean over the participants that are present, and zero where nobody is.

    Parameters
    ----------
    values : Array
        [participants, ...] one vector per participant.
    present : Array
        [participants] who is present, or of the shape of `values`: which coordinates of whom.
    shares : Array, optional
        [participants] weights of the mean. None: equal weights.

    Returns
    -------
    Array
        The mean, of the shape of one vector.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> element_wise_mean(jnp.array([[1.0], [3.0], [9.0]]), jnp.array([True, True, False])).tolist()
    [2.0]
    """
    flags = like(present, values)
    if shares is not None:
        weights = jnp.where(flags, like(shares, values), 0.0)
        total = add_up(weights)
        return add_up(weights * jnp.where(flags, values, 0.0)) / jnp.where(total > 0, total, 1.0)
    return add_up(jnp.where(flags, values, 0.0)) / jnp.maximum(add_up(flags), 1)


def mean() -> Aggregator:
    """Make the element-wise mean: the most accurate aggregate, but a single participant can move it anywhere.

    Returns
    -------
    Aggregator
        The aggregate.
    """
    return element_wise_mean


def trimmed_mean(*, trim: float) -> Aggregator:
    r"""Make the element-wise mean of the values between the quantiles `trim` and 1 - `trim`, by weight.

    Values at the two ends count with the part of their weight that lies between. With equal weights, K participants and whole
    trim K, the smallest and the largest trim K values are left out.

    Formal guarantee
    ----------------
    If participants with at most a share `trim` of the weight are hostile, every coordinate of the result lies between the
    smallest and the largest value of the others in this coordinate.

    Parameters
    ----------
    trim : float
        Share of the weight that is left out at each end, in [0, 0.5).

    Returns
    -------
    Aggregator
        The aggregate.

    References
    ----------
    Yin, Chen, Ramchandran, Bartlett: "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> trimmed_mean(trim=0.25)(jnp.array([[1.0], [2.0], [3.0], [1e6]]), jnp.ones(4, bool)).tolist()
    [2.5]
    """

    def aggregate(values: Array, present: Array, shares: Array | None = None) -> Array:
        ordered, weights, upto, total = _in_order(values, present, shares)
        kept = jnp.minimum(upto, (1 - trim) * total) - jnp.maximum(upto - weights, trim * total)
        kept = jnp.maximum(kept, 0.0)
        return add_up(kept * ordered) / jnp.maximum(add_up(kept), TINY)

    return aggregate


def median() -> Aggregator:
    """Make the element-wise median, by weight: the mean of the lower and the upper one where half the weight is on each side.

    Formal guarantee
    ----------------
    That of `trimmed_mean`, for hostile participants with less than half of the weight.

    Returns
    -------
    Aggregator
        The aggregate.

    References
    ----------
    Yin, Chen, Ramchandran, Bartlett: "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> median()(jnp.array([[1.0], [2.0], [1e6]]), jnp.ones(3, bool)).tolist()
    [2.0]
    """

    def aggregate(values: Array, present: Array, shares: Array | None = None) -> Array:
        ordered, weights, upto, total = _in_order(values, present, shares)
        lower, upper = (upto >= total / 2) & (weights > 0), (upto > total / 2) & (weights > 0)
        found = [jnp.take_along_axis(ordered, jnp.argmax(flags, axis=0)[None], 0)[0] for flags in (lower, upper)]
        return (found[0] + jnp.where(jnp.any(upper, axis=0), found[1], found[0])) / 2

    return aggregate


def geometric_median() -> Aggregator:
    r"""Make the point with the least weighted sum of distances to the participants' vectors (Weiszfeld's method).

    If coordinates are missing, a distance is over those that arrived, scaled up to all of them.

    Formal guarantee
    ----------------
    If hostile participants have a share q < 1/2 of the weight, the exact geometric median lies within
    $\frac{2(1-q)}{1-2q} r$ of every ball's centre that holds all others within radius r (Minsker, 2015). The method stops
    after 32 steps from the element-wise median.

    Returns
    -------
    Aggregator
        The aggregate.

    References
    ----------
    Minsker: "Geometric median and robust estimation in Banach spaces", Bernoulli 2015.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> points = jnp.array([[0.0, 1.0], [1.0, 0.0], [-1.0, -1.0], [0.0, 0.0], [1e4, 1e4]])
    >>> bool(jnp.linalg.norm(geometric_median()(points, jnp.ones(5, bool))) < 0.5)
    True
    """
    start = median()

    def aggregate(values: Array, present: Array, shares: Array | None = None) -> Array:
        flags = jnp.broadcast_to(like(present, values), values.shape)
        weights = like(jnp.ones(len(values)) if shares is None else shares, values)
        axes, size = tuple(range(1, values.ndim)), values[0].size
        arrived = jnp.sum(flags, axis=axes, keepdims=True)

        def step(_: int, point: Array) -> Array:
            apart = jnp.sum(jnp.where(flags, values - point, 0.0) ** 2, axis=axes, keepdims=True)
            distance = jnp.sqrt(apart * size / jnp.maximum(arrived, 1))
            least = NEAR * jnp.sum(distance) / jnp.maximum(jnp.sum(arrived > 0), 1) + TINY
            pull = jnp.where(flags, weights / jnp.maximum(distance, least), 0.0)
            return add_up(pull * jnp.where(flags, values, 0.0)) / jnp.maximum(add_up(pull), TINY)

        return jax.lax.fori_loop(0, WEISZFELD_STEPS, step, start(values, present, shares))

    return aggregate


def clipped_mean(*, reach: float) -> Aggregator:
    r"""Make the mean of the participants' vectors after each is pulled to within an adaptive distance of their median.

    The distance is `reach` times the median of the distances from the element-wise median, so it comes from the released
    messages themselves, and is far below what the worst data could need. Where coordinates are missing, a distance is over
    those that arrived, scaled up to all of them.

    Formal guarantee
    ----------------
    If hostile participants have less than half of the weight, the distance $\tau$ is at most `reach` times the largest distance
    of an honest participant, and a participant with a share p of the weight moves the result by at most $p \tau$ from where it
    would be if this participant had sent the median.

    Parameters
    ----------
    reach : float
        Times the median distance, above 0.

    Returns
    -------
    Aggregator
        The clipped mean.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> points = jnp.array([[0.0], [1.0], [2.0], [3.0], [1e6]])
    >>> clipped_mean(reach=1.0)(points, jnp.ones(5, bool)).tolist()
    [2.0]
    """
    middle = median()

    def aggregate(values: Array, present: Array, shares: Array | None = None) -> Array:
        flags = jnp.broadcast_to(like(present, values), values.shape)
        axes, size = tuple(range(1, values.ndim)), values[0].size
        centre = middle(values, present, shares)
        apart = jnp.where(flags, values - centre, 0.0)
        arrived = jnp.sum(flags, axis=axes)
        distances = jnp.sqrt(jnp.sum(apart**2, axis=axes) * size / jnp.maximum(arrived, 1))
        most = reach * middle(distances, arrived > 0, shares)
        pulled = apart * like(jnp.minimum(1.0, most / jnp.maximum(distances, TINY)), values)
        return centre + element_wise_mean(pulled, present, shares)

    return aggregate


def remembered(aggregate: Aggregator, memory: Array, heard: Array) -> Array:
    """Aggregate a table of every client's last vector, scaled to its part of the mean over all N.

    Parameters
    ----------
    aggregate : Aggregator
        The aggregate.
    memory : Array
        [clients, ...] last vectors.
    heard : Array
        [clients] the share of the objective of every client that was heard, else 0.

    Returns
    -------
    Array
        The aggregate, of the shape of one vector; clients that were never heard count as zero.
    """
    return jnp.sum(heard) * aggregate(memory, heard > 0, heard)


def _in_order(values: Array, present: Array, shares: Array | None) -> tuple[Array, Array, Array, Array]:
    """Return the values of every coordinate in order, their weights, the cumulated weights, and the whole weight.

    An absent value has weight 0, and is 0.
    """
    flags = jnp.broadcast_to(like(present, values), values.shape)
    weights = jnp.where(flags, 1.0 if shares is None else like(shares, values), 0.0)
    ordered, weights = jax.lax.sort((jnp.where(flags, values, jnp.inf), weights), dimension=0, num_keys=1)
    upto = jnp.cumsum(weights, axis=0)
    return jnp.where(weights > 0, ordered, 0.0), weights, upto, upto[-1]
