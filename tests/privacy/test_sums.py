"""Shared noise: Lemma L to many digits, the noise multiplier of a sum, both figures, exact sums modulo 2^b."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import noise_multiplier_for
from fedpdm.privacy.mechanism import Release
from fedpdm.privacy.rotation import block, rotate, rotate_back
from fedpdm.privacy.shared_noise import two_figures
from fedpdm.privacy.sharing import from_words, member_sensitivity, round_up_or_down, shared, to_words
from fedpdm.privacy.sums import (
    LEAST_STEPS,
    Cohort,
    Lattice,
    choose_lattice,
    lattice_slack,
    own_share_multiplier,
    rounded,
    share_sigma,
    sum_multiplier,
    wrap_deviations,
)


def gaussian_on_integers(steps, reach):
    weights = [mp.e ** (-(mp.mpf(k) ** 2) / (2 * steps**2)) for k in range(-reach, reach + 1)]
    return [w / mp.fsum(weights) for w in weights]


def convolve(one, other):
    result = [mp.mpf(0)] * (len(one) + len(other) - 1)
    for i, p in enumerate(one):
        for j, q in enumerate(other):
            result[i + j] += p * q
    return result


@pytest.mark.parametrize("steps", ["0.4", "0.8", "1.2"])
def test_lemma_l_holds_to_sixty_digits_and_is_of_the_right_order(steps):
    with mp.workdps(60):
        a = mp.mpf(steps)
        share = gaussian_on_integers(a, int(14 * a) + 8)
        total = share
        for shares in (2, 3, 4):
            total = convolve(total, share)
            reach = len(total) // 2
            single = gaussian_on_integers(a * mp.sqrt(shares), reach)
            inner = range(reach - int(6 * a), reach + int(6 * a) + 1)
            worst = max(abs(mp.log(total[i] / single[i])) for i in inner)
            assert worst <= mp.mpf("6.3") * (shares - 1) * mp.e ** (-((mp.pi * a) ** 2))
            if shares == 2:  # the bound is not far off: half the exponent, or twice it, would be refuted
                assert worst >= mp.e ** (-((mp.pi * a) ** 2))


def test_the_lattice_costs_nothing_that_counts_at_the_least_noise_allowed():
    assert lattice_slack(LEAST_STEPS, dimension=10**6, shares=10**4, releases=10**4) < 1e-15
    assert lattice_slack(1.0, dimension=10**6, shares=100, releases=60) > 1


@pytest.mark.parametrize("shares", [1, 2, 24, 800])
@pytest.mark.parametrize("scale", [2**10, 2**24])
def test_shares_add_up_to_the_noise_that_was_asked_for(shares, scale):
    sigma = share_sigma(24.7, 0.013, 7850, shares, scale)
    assert sum_multiplier(sigma, 0.013, 7850, shares, scale) == pytest.approx(24.7, rel=1e-12)
    # The own share alone, from its definition, is no worse than what is stated.
    alone = math.sqrt(sigma**2 - (3 / scale) ** 2) / rounded(0.013, 7850, scale)
    stated = own_share_multiplier(24.7, 7850, shares)
    assert stated <= alone * (1 + 1e-12)
    assert stated == pytest.approx(24.7 / math.sqrt(shares), rel=1e-2)


def test_too_little_noise_for_the_proof_counts_as_none():
    assert sum_multiplier(2.9 / 2**20, 0.01, 10, 100, 2**20) == 0.0


def test_both_figures_are_the_ones_in_the_docs():
    z = {e: noise_multiplier_for(e, 1e-5, 60, "add-remove") for e in (1.0, 0.2)}
    cohorts = [Cohort(25, 3, 2), Cohort(30, 3, 3), Cohort(100, 10, 10), Cohort(1000, 100, 100)]
    own = {e: [two_figures(z[e], "sum", 7850, c, 1e-5, 60, "add-remove")[2] for c in cohorts] for e in z}
    assert own[1.0] == pytest.approx([5.4, 6.0, 12.5, 60], rel=0.03)
    assert own[0.2] == pytest.approx([1.03, 1.13, 2.2, 8.4], rel=0.03)
    sums = [two_figures(z[1.0], "own-share", 7850, c, 1e-5, 60, "add-remove")[1] for c in cohorts]
    assert sums == pytest.approx([0.20, 0.18, 0.09, 0.03], abs=0.006)


def test_a_cohort_that_cannot_guarantee_anything_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match="hides nothing"):
        Cohort(1, 0, 0).check()
    with pytest.raises(ConfigError, match="no honest member"):
        Cohort(4, 3, 1).check()
    with pytest.raises(ConfigError, match=r"set cohorts\.dropouts to at most 1"):
        Cohort(5, 1, 2).check()
    for members in range(2, 40):  # two sets that may open a sum share an honest member, for any colluding members
        for colluding in range(members):
            threshold = Cohort(members, colluding, 0).threshold
            assert 2 * threshold - members > colluding


@pytest.mark.parametrize("bits", [8, 16, 31, 32])
def test_sums_of_words_are_exact_modulo_a_power_of_two(bits):
    rng = np.random.default_rng(bits)
    numbers = rng.integers(-(2**31), 2**31, size=(50, 40), dtype=np.int64)
    words = to_words(numbers.astype(np.int32), bits)
    expected = (numbers.sum(axis=0) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    assert from_words(words.sum(axis=0, dtype=np.uint32), bits).tolist() == expected.tolist()
    in_jax = from_words(jnp.sum(to_words(jnp.asarray(numbers.astype(np.int32)), bits), axis=0, dtype=jnp.uint32), bits)
    assert in_jax.tolist() == expected.tolist()


def test_the_lattice_that_is_chosen_leaves_room_and_a_finer_one_does_not():
    cohort = Cohort(100, 10, 10)
    lattice = choose_lattice(24, 1.0, 25.0, 0.01, 7850, cohort, 100)
    for chosen, fits in ((lattice, True), (lattice._replace(scale=2 * lattice.scale), False)):
        sigma = share_sigma(25.0, 0.01, 7850, cohort.honest, chosen.scale)
        assert (wrap_deviations(1.0, sigma, 7850, 100, chosen) >= 8) == fits
    with pytest.raises(ConfigError, match=r"raise cohorts\.bits"):
        choose_lattice(6, 1.0, 25.0, 0.01, 7850, cohort, 100)


def release(key=0, examples=10.0):
    one = jnp.float32(1.0)
    return Release(one, jnp.float32(examples), jnp.int32(1), one, jax.random.key(key))


def test_one_sensitivity_covers_members_of_every_size():
    sizes = np.array([10, 40, 100])
    falls = member_sensitivity(lambda r: 3.0 / r.examples, sizes)  # as in the linearised and contractive modes
    assert float(falls(release())) == pytest.approx(3.0 / 50)
    stays = member_sensitivity(lambda r: 0.5, sizes)  # as in one pass
    assert float(stays(release())) == pytest.approx(0.5 * 100 / 50)


def test_the_noise_of_a_sum_is_what_the_accounting_says():
    cohort, lattice, z, s, size = Cohort(10, 2, 1), Lattice(2**16, 32), 5.0, 0.01, 400
    sums = shared(lambda r: s, z, size, cohort, lattice, 10.0).sums
    keys = jax.random.split(jax.random.key(0), 200 * cohort.honest)
    words = jax.jit(jax.vmap(lambda key: sums.share(jnp.zeros(size), release()._replace(key=key))))(keys)
    words = np.asarray(words).reshape(200, cohort.honest, size)
    found = from_words(words.sum(axis=1, dtype=np.uint32), 32) / lattice.scale
    expected = z * rounded(s, size, lattice.scale)
    assert found.std() == pytest.approx(expected, rel=0.02)


def neighbours(rng, size):
    """A vector, and one that differs from it by at most 6 steps: in all coordinates alike, in one, or at random."""
    a = rng.normal(size=size) * 10
    shape = (np.ones(size), np.eye(size)[0], rng.normal(size=size), rng.exponential(size=size) ** 3)[rng.integers(4)]
    return a, a + shape / np.linalg.norm(shape) * rng.choice([0.01, 0.5, 2.0, 6.0])


@pytest.mark.parametrize("size", [3, 100, 2010])
def test_rounding_up_or_down_moves_neighbours_no_further_apart_than_lemma_r(size):
    """With the same draws, as in the proof; rounding to the nearest is the control that goes beyond it."""
    rng, worst, control = np.random.default_rng(size), 0.0, 0.0
    for _ in range(2000):
        a, b = neighbours(rng, size)
        bound, draws = rounded(float(np.linalg.norm(a - b)), size, 1), rng.random(size)
        worst = max(worst, np.linalg.norm(round_up_or_down(a, draws) - round_up_or_down(b, draws)) / bound)
    for _ in range(20):
        middle = np.floor(rng.normal(size=size) * 10) + 0.5
        apart = np.rint(middle + 1e-6) - np.rint(middle - 1e-6)
        control = max(control, np.linalg.norm(apart) / rounded(2e-6 * math.sqrt(size), size, 1))
    assert 0.3 < worst <= 1.0
    assert (control > 1.0) == (size > 3)  # for few coordinates the bound is that of rounding to the nearest


def test_rounding_up_or_down_is_right_in_the_mean():
    values = np.array([0.25, -3.9, 7.0])
    found = np.mean([round_up_or_down(values, draws) for draws in np.random.default_rng(0).random((40_000, 3))], axis=0)
    assert found == pytest.approx(values, abs=0.01)


@pytest.mark.parametrize("size", [1, 2, 7, 2010])
def test_the_rotation_keeps_distances_is_undone_and_spreads_one_coordinate_over_half_of_them(size):
    rng = np.random.default_rng(size)
    one, other = rng.normal(size=(2, size))
    assert np.linalg.norm(rotate(one) - rotate(other)) == pytest.approx(np.linalg.norm(one - other), rel=1e-12)
    assert rotate_back(rotate(one)) == pytest.approx(one, abs=1e-12)
    np.testing.assert_allclose(jax.jit(rotate)(jnp.asarray(one, jnp.float32)), rotate(one), atol=1e-5)
    largest = max(np.abs(rotate(np.eye(size)[i])).max() for i in range(0, size, 97))
    assert largest <= 6 / math.sqrt(block(size))
