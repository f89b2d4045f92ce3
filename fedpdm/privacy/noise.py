r"""Gaussian noise: fast for simulation, exact for real clients.

Why the discrete Gaussian of `SecureGaussian` counts as a Gaussian. Count in lattice steps: a client adds
$N_{\mathbb Z}(0, s^2)$, $s = \sigma S$, to every coordinate of an integer vector a; its neighbour has the integer
vector b. The discrete Gaussian is *not* exactly GDP: at a shift of one step its total variation is about
$1 + 1/(24 s^2)$ times the Gaussian's. But it almost is a randomly rounded Gaussian of slightly less noise. Take
$y \sim N(a, s^2 - \tau^2)$ and round it to the integer o with probability proportional to
$\exp(-(o - y)^2/2\tau^2)$. The rounding does not look at data, so its result M_a is post-processing of a Gaussian
release. By Poisson summation the normaliser $\sum_n \exp(-(n - y)^2/2\tau^2)$ is $\tau\sqrt{2\pi}$ up to a factor
$1 \pm h$, $h = 2.1 \exp(-2 \pi^2 \tau^2)$, for every y; and two Gaussians convolve to one. So M_a(o) is the density
of N(a, s^2) at o up to $1/(1 \pm h)$. Since a is an integer vector, the same sum at s says that the probability
D_a(o) of the discrete Gaussian is that density up to $1/(1 + h)$. Hence, on d coordinates,

$$e^{-\kappa} M_a \le D_a \le e^{\kappa} M_a \quad\text{pointwise, with}\quad \kappa = 3 d h,$$

and over adaptive rounds the factors multiply, as densities do. With $\tau = 3$, $h < 10^{-76}$: for fewer than
$10^{60}$ coordinates in all rounds together, $\kappa < 10^{-15}$.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from fedpdm.draws import normal
from fedpdm.errors import ConfigError, UserError, require_extra

__all__ = ["SEEDED", "MeanNoise", "SecureGaussian", "add_discrete_gaussian", "mean_noise", "simulation_noise"]

SEEDED = "The noise of this simulation is seeded: it measures accuracy at this privacy level and protects nobody."

_SMOOTHING = 3.0  # tau above, in lattice steps
_SMALLEST = 2.0**10  # least sigma in lattice steps: the loss of noise by tau is below 0.0005 %
_LARGEST = 2.0**53  # most lattice steps for a value or for sigma: float64 still has every integer


def simulation_noise(key: Array, shape: tuple[int, ...], sigma: ArrayLike) -> Array:
    """Draw Gaussian noise for simulation only: `sigma` times JAX's standard normals.

    Formal guarantee: none. Accounting treats it as ideal Gaussian noise, which it is not: a float32 normal takes about
    2^23 values, so the low-order bits of a sum can reveal the private value, and anyone with the seed knows the noise. It
    is good enough to measure accuracy at a privacy level, never to send real data.

    Parameters
    ----------
    key : Array
        JAX random key.
    shape : tuple of int
        Shape of the noise.
    sigma : float or Array
        Standard deviation; may be traced. Zero gives zeros.

    Returns
    -------
    Array
        The noise.
    """
    return jnp.asarray(sigma) * normal(key, shape)


def _continuous_equivalent(steps: float) -> float:
    """Return the sigma of the Gaussian release that the discrete one is a post-processing of (see the head of the module)."""
    return math.sqrt(steps**2 - _SMOOTHING**2)


def _discrete_gaussian(centres: list[int], scale: float) -> list[int]:
    """Draw one exact sample of the discrete Gaussian around every centre, from the operating system's randomness."""
    # Import these modules alone: opendp.prelude takes seconds, because it imports scikit-learn.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
    return make_gaussian(*space, scale=scale)(centres)


def add_discrete_gaussian(integers: np.ndarray, steps: float) -> np.ndarray:
    """Add exact discrete Gaussian noise to whole numbers: OpenDP, with the operating system's randomness.

    Parameters
    ----------
    integers : ndarray
        Whole numbers.
    steps : float
        Standard deviation of the noise.

    Returns
    -------
    ndarray
        int64, of the same shape.
    """
    return np.asarray(_discrete_gaussian(integers.ravel().tolist(), steps), dtype=np.int64).reshape(integers.shape)


@dataclass(frozen=True)
class SecureGaussian:
    r"""Gaussian noise for real clients: OpenDP's exact discrete Gaussian on the lattice of step 1/`lattice_scale`.

    Formal guarantee: let x have d coordinates and add-remove sensitivity s. Then `release` with noise `sigma` counts
    as a Gaussian release with multiplier $z = \sqrt{\sigma^2 - (3/S)^2} / (s + \sqrt d/S)$, which `noise_multiplier`
    returns (z/2 for replace-one, as everywhere): an adaptive sequence of releases whose multipliers compose to
    $\mu$-GDP is $(\epsilon + 2\kappa, e^\kappa \delta)$-DP whenever $\mu$-GDP gives $(\epsilon, \delta)$, with
    $\kappa < 10^{-15}$ as derived at the head of the module. Assumptions: s includes the floating-point error of the
    computation of x; x is within the lattice's range for every data set (a refusal depends on data, and can be
    seen); the operating system's randomness is good.

    Parameters
    ----------
    lattice_scale : int
        S, lattice steps per unit: a power of two, so that scaling a float64 is exact.

    References
    ----------
    Canonne, Kamath, Steinke: "The discrete Gaussian for differential privacy", NeurIPS 2020.
    """

    lattice_scale: int = 2**24

    def __post_init__(self) -> None:
        scale = self.lattice_scale
        if not (isinstance(scale, int) and 1 <= scale <= 2**40 and scale & (scale - 1) == 0):
            raise ConfigError(f"Expected lattice_scale={scale} to be a power of two from 1 to 2**40.")
        require_extra("opendp", "flower", "The noise of a real client")  # check before a client spends its budget

    def sensitivity_with_rounding(self, sensitivity: float, dimension: int) -> float:
        r"""Return the sensitivity after rounding to the lattice: $s + \sqrt d/S$, rounded up.

        Each of the two neighbours moves by at most half a step per coordinate. For replace-one, doubling the result of
        the add-remove sensitivity counts the rounding twice, which is safe.
        """
        if not 0 < sensitivity < math.inf:
            raise ConfigError(f"Expected sensitivity={sensitivity} in (0, inf).")
        if dimension < 1:
            raise ConfigError(f"Expected dimension={dimension} of at least 1.")
        return (sensitivity + math.sqrt(dimension) / self.lattice_scale) * (1 + 1e-15)

    def noise_multiplier(self, sigma: float, sensitivity: float, dimension: int) -> float:
        """Return the z of a release for the accounting, rounded down. Guarantee: see the class."""
        noise = _continuous_equivalent(self._steps(sigma)) / self.lattice_scale
        return noise / self.sensitivity_with_rounding(sensitivity, dimension) * (1 - 1e-15)

    def sigma_for(self, noise_multiplier: float, sensitivity: float, dimension: int) -> float:
        """Return the sigma, rounded up, that gives at least this `noise_multiplier`."""
        noise = noise_multiplier * self.sensitivity_with_rounding(sensitivity, dimension)
        sigma = math.hypot(noise, _SMOOTHING / self.lattice_scale) * (1 + 1e-14)
        self._steps(sigma)
        return sigma

    def release(self, x: ArrayLike, sigma: float) -> np.ndarray:
        """Round x to the lattice, add discrete Gaussian noise, return float64. Guarantee: see the class.

        Parameters
        ----------
        x : array
            The private vector, of any shape. Everything computed from the result is post-processing.
        sigma : float
            Standard deviation of the noise, at least 2**10 lattice steps.
        """
        steps = self._steps(sigma)
        return add_discrete_gaussian(self._to_lattice(x), steps).astype(np.float64) / self.lattice_scale

    def within(self, x: ArrayLike) -> np.ndarray:
        """Return x in float64, cut to the lattice's range, with 0 for NaN, so that no value of x makes a release fail.

        If x is in range for every data set, this changes nothing; and a cut never increases the distance of two values.
        """
        largest = _LARGEST / self.lattice_scale
        exact = np.asarray(x, np.float64)
        return np.clip(np.where(np.isnan(exact), 0.0, exact), -largest, largest)

    def _steps(self, sigma: float) -> float:
        steps = sigma * self.lattice_scale
        if not _SMALLEST <= steps <= _LARGEST:
            low, high = _SMALLEST / self.lattice_scale, _LARGEST / self.lattice_scale
            raise ConfigError(
                f"Expected sigma={sigma} from {low:g} to {high:g} at lattice_scale={self.lattice_scale}: "
                "change the lattice_scale, or sigma."
            )
        return steps

    def _to_lattice(self, x: ArrayLike) -> np.ndarray:
        with np.errstate(over="ignore"):
            steps = np.rint(np.asarray(x, dtype=np.float64) * self.lattice_scale)
        if not np.all(np.abs(steps) <= _LARGEST):  # also refuses NaN
            largest = _LARGEST / self.lattice_scale
            raise UserError(
                f"Expected every value to be finite and within {largest:g} of 0: nothing was released. "
                "Clip the values, or lower the lattice_scale."
            )
        return steps.astype(np.int64)


class MeanNoise(NamedTuple):
    """The noise of a mean: its lattice, the sensitivity without the lattice's rounding, and the standard deviation."""

    gaussian: SecureGaussian
    sensitivity: float
    sigma: float


def mean_noise(bound: float, slots: int, places: int, dimension: int, noise_multiplier: float) -> MeanNoise:
    r"""The noise of a mean of bounded vectors. It follows from public values alone, so a server knows it too.

    In float64 a sum over k = `places` terms, with up to twelve operations on each, has an error of at most $\gamma_{k+12}$
    times the sum of the terms' absolute values in each coordinate. The terms' norms add up to `bound` at most.

    Parameters
    ----------
    bound : float
        The largest norm of one unit's vector.
    slots, places : int
        The public numbers of units, and of rows that they can have.
    dimension : int
        Coordinates of the mean.
    noise_multiplier : float
        Noise over sensitivity.

    Returns
    -------
    MeanNoise
        The noise.
    """
    terms = (places + 12) * 2.0**-53
    sensitivity = bound * ((1 + 2.0**-40) / slots + 2 * terms / (1 - terms))
    lattice = 2**24
    while noise_multiplier * sensitivity * lattice < 2**12 and lattice < 2**40:
        lattice *= 2
    gaussian = SecureGaussian(lattice)
    return MeanNoise(gaussian, sensitivity, gaussian.sigma_for(noise_multiplier, sensitivity, dimension))
