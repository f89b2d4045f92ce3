"""The noise has the distribution that the accounting assumes, and rounding is counted."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from fedpdm.errors import ConfigError, UserError
from fedpdm.privacy import noise
from fedpdm.privacy.accounting import epsilon_of, gdp_delta
from fedpdm.privacy.noise import SecureGaussian, simulation_noise

RARE = 1e-9  # how unlikely a sample must be before it is called wrong; no seed can be set for the exact sampler


def pmf(scale, reach=20.0):
    """Support and probabilities of the discrete Gaussian around 0."""
    support = np.arange(-math.ceil(reach * scale) - 2, math.ceil(reach * scale) + 3)
    weights = np.exp(-(support**2) / (2 * scale**2))
    return support, weights / weights.sum()


def is_discrete_gaussian(draws, scale):
    """Chi-square test on the bins that expect at least ten, the two tails lumped."""
    support, mass = pmf(scale)
    draws = np.asarray(draws)
    inside = support[mass * draws.size >= 10]
    bins = np.clip(draws, inside[0] - 1, inside[-1] + 1) - inside[0] + 1
    observed = np.bincount(bins.astype(int), minlength=inside.size + 2)
    centre = mass[np.isin(support, inside)]
    tail = (1 - centre.sum()) / 2
    expected = draws.size * np.array([tail, *centre, tail])
    # The tails may expect less than ten: add them to their neighbours.
    for counts in (observed, expected):
        counts[1], counts[-2] = counts[1] + counts[0], counts[-2] + counts[-1]
    return stats.chisquare(observed[1:-1], expected[1:-1]).pvalue > RARE


def has_moments(draws, sigma):
    """Mean 0 and standard deviation sigma, within six standard errors of each."""
    draws = np.asarray(draws, dtype=np.float64).ravel()
    error = sigma / math.sqrt(draws.size)
    return abs(draws.mean()) < 6 * error and abs(draws.std() - sigma) < 6 * error / math.sqrt(2)


@pytest.mark.parametrize("scale", [0.6, 3.0])
def test_sampler_is_the_discrete_gaussian_and_impostors_are_caught(scale):
    size = 30_000
    draws = np.array(noise._discrete_gaussian([7] * size, scale)) - 7
    assert is_discrete_gaussian(draws, scale)
    assert not is_discrete_gaussian(noise._discrete_gaussian([0] * size, 1.05 * scale), scale)
    normals = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    if scale < 1:  # where rounding changes the distribution visibly
        assert not is_discrete_gaussian(np.rint(scale * normals), scale)
    assert not is_discrete_gaussian(draws + (np.arange(size) % 3 == 0), scale)  # biased


def test_moments_at_working_scale():
    secure, sigma = SecureGaussian(), 0.01
    x = np.linspace(-1, 1, 20_000).reshape(200, 100)
    released = secure.release(x, sigma)
    assert released.shape == x.shape
    assert released.dtype == np.float64
    assert has_moments(released - x, sigma)
    assert not has_moments(released - x, 1.05 * sigma)
    assert not has_moments(released - x + sigma / 10, sigma)
    assert stats.kstest((released - x).ravel() / sigma, "norm").pvalue > RARE


def test_released_values_are_on_the_lattice_and_so_hide_the_low_bits_of_x():
    secure = SecureGaussian(2**12)
    x = np.random.default_rng(1).normal(size=500)
    released = secure.release(x, 0.5) * 2**12
    np.testing.assert_array_equal(released, np.rint(released))
    assert not np.array_equal(x * 2**12, np.rint(x * 2**12))  # what noise in floating point would keep


def test_calls_are_independent():
    secure = SecureGaussian()
    first, second = (secure.release(np.zeros(5000), 1.0) for _ in range(2))
    assert not np.array_equal(first, second)
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / math.sqrt(5000)
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 6 / math.sqrt(4999)


vectors = st.integers(1, 30).flatmap(lambda d: st.tuples(*2 * [arrays(np.float64, d, elements=st.floats(-3, 3, width=32))]))


@settings(deadline=None)
@given(vectors, st.integers(0, 24), st.floats(0, 1))
def test_rounding_never_adds_more_than_is_counted(pair, power, closeness):
    x, other = pair
    other = closeness * x + (1 - closeness) * other
    secure = SecureGaussian(2**power)
    before, after = np.linalg.norm(x - other), np.linalg.norm(secure._to_lattice(x) - secure._to_lattice(other))
    assert after / 2**power <= secure.sensitivity_with_rounding(before + 1e-300, x.size) * (1 + 1e-12)


def test_rounding_can_add_almost_as_much_as_is_counted():
    """The bound is tight: counting half of it, or nothing, is a breach."""
    secure, d = SecureGaussian(2**10), 100
    x, other = np.full(d, 0.499 / 2**10), np.full(d, 0.501 / 2**10)
    before, after = np.linalg.norm(x - other), np.linalg.norm(secure._to_lattice(x) - secure._to_lattice(other)) / 2**10
    assert after <= secure.sensitivity_with_rounding(before, d) <= 1.01 * after
    assert after > before + math.sqrt(d) / 2 / 2**10


def lattice_delta(epsilon, scale, shift):
    """The exact delta(epsilon) between discrete Gaussians around 0 and around an integer vector."""
    support, mass = pmf(scale, reach=12.0)
    p, q = np.ones(1), np.ones(1)
    for step in shift:
        moved = np.exp(-((support - step) ** 2) / (2 * scale**2))
        p, q = np.outer(p, mass).ravel(), np.outer(q, moved / moved.sum()).ravel()
    return np.maximum(0, p - math.exp(epsilon) * q).sum()


def accounted(epsilon, scale, shift):
    return gdp_delta(epsilon, float(np.linalg.norm(shift)) / noise._continuous_equivalent(scale))


def plain(epsilon, scale, shift):
    return gdp_delta(epsilon, float(np.linalg.norm(shift)) / scale)


CASES = [(s, v) for s in (4.0, 7.3, 16.0) for v in ([1], [3], [9], [1, 1], [2, -5], [0, 4])]
EPSILONS = [0.0, 1e-3, 0.1, 0.3, 0.5, 1.0, 2.0, 4.0]


def breaches(claim):
    return [(e, s, v) for s, v in CASES for e in EPSILONS if lattice_delta(e, s, v) > claim(e, s, v) * (1 + 1e-9) + 1e-13]


def test_accounted_delta_covers_the_exact_delta_of_the_lattice_and_plain_gdp_does_not():
    assert not breaches(accounted)
    assert breaches(plain)


def test_plain_gdp_fails_even_at_the_smallest_sigma_allowed():
    scale, shift = noise._SMALLEST, [1]
    assert plain(0.0, scale, shift) * (1 + 1e-8) < lattice_delta(0.0, scale, shift) < accounted(0.0, scale, shift)


@pytest.mark.parametrize("tau", [0.5, 0.8, 1.2])
def test_discrete_gaussian_is_a_randomly_rounded_gaussian(tau):
    """The derivation itself, at smoothings so small that its error is in sight."""
    scale, h = 3.0, 2.1 * math.exp(-2 * math.pi**2 * tau**2)
    support, mass = pmf(scale)
    y, step = np.linspace(-40, 40, 400_001, retstep=True)
    rounding = np.exp(-((support[:, None] - y[None, ::20]) ** 2) / (2 * tau**2))
    rounding /= rounding.sum(0)
    core = np.abs(support) < 8 * scale

    def error(spread):
        rounded = rounding @ stats.norm.pdf(y[::20], scale=spread) * step * 20
        return np.abs(np.log(mass[core] / rounded[core])).max()

    assert error(math.sqrt(scale**2 - tau**2)) <= 3 * h + 1e-9
    assert error(scale) > 3 * h + 1e-9  # rounding adds noise of its own: it must be taken off
    assert tau > 0.5 or error(math.sqrt(scale**2 - tau**2)) > 1e-4  # the error is real, not a rounding of floats


def test_smoothing_at_work_is_beyond_any_float():
    assert 2.1 * math.exp(-2 * math.pi**2 * noise._SMOOTHING**2) < 1e-76
    assert noise._continuous_equivalent(noise._SMALLEST) > noise._SMALLEST * (1 - 5e-6)


@settings(deadline=None)
@given(st.floats(0.1, 500), st.floats(1e-4, 10), st.integers(1, 10**6))
def test_sigma_for_reaches_the_multiplier(z, sensitivity, dimension):
    secure = SecureGaussian()
    sigma = max(secure.sigma_for(z, sensitivity, dimension), 0) if z * sensitivity > 1e-4 else 1.0
    reached = secure.noise_multiplier(sigma, sensitivity, dimension)
    if z * sensitivity > 1e-4:
        assert z <= reached <= z * (1 + 1e-9)
    assert reached < sigma / sensitivity  # neither rounding nor smoothing is free


def test_what_the_lattice_costs_at_the_size_of_mnist():
    secure, sensitivity = SecureGaussian(), 0.02
    sigma = 24.68 * sensitivity
    z = secure.noise_multiplier(sigma, sensitivity, 7850)
    assert epsilon_of(z, 60, 1e-4, "add-remove") == pytest.approx(epsilon_of(24.68, 60, 1e-4, "add-remove"), rel=5e-4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: SecureGaussian(3), ConfigError, "lattice_scale=3 to be a power of two"),
        (lambda: SecureGaussian(0), ConfigError, "lattice_scale=0"),
        (lambda: SecureGaussian(2.0), ConfigError, "lattice_scale=2.0"),
        (lambda: SecureGaussian().release([0.0], 1e-6), ConfigError, "sigma=1e-06 from 6.10352e-05"),
        (lambda: SecureGaussian().release([0.0], 0.0), ConfigError, "sigma=0"),
        (lambda: SecureGaussian().release([0.0], -1.0), ConfigError, "sigma=-1"),
        (lambda: SecureGaussian().release([0.0], math.inf), ConfigError, "sigma=inf"),
        (lambda: SecureGaussian().noise_multiplier(math.nan, 1.0, 1), ConfigError, "sigma=nan"),
        (lambda: SecureGaussian().release([0.0, math.nan], 1.0), UserError, "nothing was released"),
        (lambda: SecureGaussian().release([-math.inf], 1.0), UserError, "nothing was released"),
        (lambda: SecureGaussian().release([1e300], 1.0), UserError, "within 5.36871e[+]08 of 0"),
        (lambda: SecureGaussian().release([1e9], 1.0), UserError, "nothing was released"),
        (lambda: SecureGaussian().sensitivity_with_rounding(0.0, 1), ConfigError, "sensitivity=0"),
        (lambda: SecureGaussian().sensitivity_with_rounding(1.0, 0), ConfigError, "dimension=0"),
    ],
)
def test_errors_name_the_value_and_the_limit(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_largest_values_pass():
    secure = SecureGaussian()
    edge = np.array([2.0**29, -(2.0**29)])
    assert np.all(np.abs(secure.release(edge, 1.0) - edge) < 20)


def test_simulation_noise():
    key = jax.random.key(0)
    draws = simulation_noise(key, (100, 200), 0.5)
    assert draws.shape == (100, 200)
    assert has_moments(draws, 0.5)
    assert not has_moments(draws, 0.525)
    np.testing.assert_array_equal(draws, simulation_noise(key, (100, 200), 0.5))
    assert not np.any(simulation_noise(key, (10,), 0.0))
    traced = jax.jit(lambda sigma: simulation_noise(key, (10,), sigma))(jnp.float32(0.5))
    np.testing.assert_allclose(traced, simulation_noise(key, (10,), 0.5), rtol=1e-6)


def test_a_value_out_of_range_is_cut_and_not_refused():
    """A refusal would reveal something about the value without noise."""
    gaussian = SecureGaussian(2**30)
    cut = gaussian.within([np.nan, np.inf, -np.inf, 1.5, 1e300])
    assert cut.tolist() == [0.0, 2.0**23, -(2.0**23), 1.5, 2.0**23]
    assert np.isfinite(gaussian.release(cut, 0.1)).all()
