"""The numbers behind a privacy claim, against other derivations of the same numbers."""

import math

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from fedpdm.errors import ConfigError
from fedpdm.privacy import accounting as acc
from fedpdm.privacy.published import paper_round_epsilon, paper_sensitivity, paper_sigma, paper_total_epsilon
from fedpdm.privacy.sampling import sampled_epsilon, sampled_noise_multiplier

RELATIONS = ["add-remove", "replace-one"]
SPEC_TABLE = {0.1: 189.8, 0.2: 103.1, 0.5: 45.7, 1: 24.7, 5: 6.17, 10: 3.53, 20: 2.09, 30: 1.56}

epsilons = st.floats(0.01, 50)
deltas = st.floats(-15, -1).map(lambda x: 10**x)
counts = st.integers(1, 10_000)
relations = st.sampled_from(RELATIONS)
relaxed = settings(deadline=None)  # other work on the machine must not fail a test


def exact_delta(epsilon, mu):
    """Sixty digits of the formula, which needs no care with that many."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return float(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))


def hockey_stick(epsilon, mu):
    """The definition: integral of max(0, p - e^epsilon q) for p = N(mu, 1) and q = N(0, 1)."""
    with mpmath.workdps(30):
        start = mpmath.mpf(epsilon) / mu + mpmath.mpf(mu) / 2

        def gap(x):
            return mpmath.npdf(x, mu, 1) - mpmath.exp(epsilon) * mpmath.npdf(x, 0, 1)

        return float(mpmath.quad(gap, [start, start + 3, start + 8, start + 40]))


def disagrees(delta_of, reference=exact_delta, tolerance=1e-9):
    """Whether a formula for delta(epsilon, mu) is wrong somewhere; the negative controls go through here too."""
    points = [(e, mu) for e in (0.0, 0.1, 1.0, 5.0, 30.0, 300.0) for mu in (1e-9, 1e-6, 0.01, 0.3, 0.6, 2.0, 8.0, 25.0)]
    truths = [(e, mu, reference(e, mu)) for e, mu in points]
    return any(abs(delta_of(e, mu) - truth) > tolerance * truth for e, mu, truth in truths if truth > 1e-15)


def pld_epsilon(multipliers, delta, relation="add-remove", interval=1e-4):
    """dp-accounting's numerical composition, an independent piece of code."""
    sides = {"add-remove": dp.NeighboringRelation.ADD_OR_REMOVE_ONE, "replace-one": dp.NeighboringRelation.REPLACE_ONE}
    ledger = dp.pld.PLDAccountant(sides[relation], value_discretization_interval=interval)
    for z in multipliers:
        ledger.compose(dp.GaussianDpEvent(z))
    return ledger.get_epsilon(delta)


def test_gdp_delta_is_the_exact_one_and_wrong_formulas_are_caught():
    assert not disagrees(acc.gdp_delta)
    assert disagrees(lambda e, mu: float(ndtr(mu / 2 - e / mu)))  # the e^epsilon term dropped
    assert disagrees(lambda e, mu: acc.gdp_delta(e, mu * (1 + 1e-6)))  # a little too much
    assert disagrees(lambda e, mu: float(ndtr(mu / 2 - e / mu) - math.exp(e) * ndtr(-mu / 2 - e / mu)))  # cancels


@pytest.mark.parametrize(("epsilon", "mu"), [(0.0, 0.5), (1.0, 1.0), (3.0, 0.5), (20.0, 5.0)])
def test_gdp_delta_is_the_hockey_stick_divergence(epsilon, mu):
    assert acc.gdp_delta(epsilon, mu) == pytest.approx(hockey_stick(epsilon, mu), rel=1e-9)


@relaxed
@given(st.floats(-8, 3).map(lambda x: 10**x), st.floats(-4, 10))
def test_gdp_delta_keeps_its_digits(mu, tail):
    epsilon = max(0.0, mu * (tail + mu / 2))
    truth = exact_delta(epsilon, mu)
    assume(truth > 1e-20)
    assert acc.gdp_delta(epsilon, mu) == pytest.approx(truth, rel=1e-10)


def test_gdp_delta_at_the_ends():
    assert acc.gdp_delta(1.0, 0.0) == 0.0
    assert acc.gdp_delta(1.0, math.inf) == 1.0
    assert acc.gdp_delta(1e6, 1e-300) == 0.0
    assert acc.gdp_delta(0.0, 1e-9) == pytest.approx(1e-9 / math.sqrt(2 * math.pi))
    assert acc.gdp_epsilon(math.inf, 1e-5) == math.inf


@relaxed
@given(st.floats(-4, 2.5).map(lambda x: 10**x), deltas)
def test_gdp_epsilon_is_the_smallest_that_holds(mu, delta):
    epsilon = acc.gdp_epsilon(mu, delta)
    assert acc.gdp_delta(epsilon, mu) <= delta
    if epsilon > 1e-12:
        assert acc.gdp_delta(epsilon * (1 - 1e-9), mu) > delta


@relaxed
@given(epsilons, deltas)
def test_gdp_mu_is_the_largest_that_holds(epsilon, delta):
    mu = acc.gdp_mu(epsilon, delta)
    assert acc.gdp_delta(epsilon, mu) <= delta < acc.gdp_delta(epsilon, mu * (1 + 1e-9))


@pytest.mark.parametrize(("epsilon", "z"), SPEC_TABLE.items())
def test_noise_multipliers_of_the_specification(epsilon, z):
    assert acc.noise_multiplier_for(epsilon, 1e-4, 60, "add-remove") == pytest.approx(z, rel=0.01)
    assert acc.noise_multiplier_for(epsilon, 1e-4, 60, "replace-one") == pytest.approx(2 * z, rel=0.01)


def test_add_remove_1_is_replace_one_2_21():
    z = acc.noise_multiplier_for(1.0, 1e-4, 60, "add-remove")
    assert acc.epsilon_of(z, 60, 1e-4, "replace-one") == pytest.approx(2.21, abs=0.005)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("z", "count", "delta"), [(24.7, 60, 1e-4), (3.0, 1, 1e-6), (1.56, 60, 1e-4)])
def test_full_batch_composition_agrees_with_pld_and_a_wrong_mu_does_not(z, count, delta, relation):
    truth = pld_epsilon([z / math.sqrt(count)], delta, relation, interval=1e-3)
    assert acc.epsilon_of(z, count, delta, relation) == pytest.approx(truth, rel=0.01)
    wrong = acc.gdp_epsilon(count / acc.effective_multiplier(z, relation), delta)  # mu = R/z
    assert count == 1 or wrong != pytest.approx(truth, rel=0.01)
    other = RELATIONS[relation == "add-remove"]
    assert acc.epsilon_of(z, count, delta, other) != pytest.approx(truth, rel=0.01)  # the other relation


def test_compositions_of_unequal_noise_agree_with_pld():
    multipliers = [3.0, 5.0, 8.0, 4.0, 20.0]
    mu = acc.compose_gdp(multipliers)
    assert mu == pytest.approx(math.sqrt(sum(z**-2 for z in multipliers)))
    assert acc.gdp_epsilon(mu, 1e-5) == pytest.approx(pld_epsilon(multipliers, 1e-5), rel=0.01)
    wrong = math.sqrt(len(multipliers)) / np.mean(multipliers)
    assert acc.gdp_epsilon(wrong, 1e-5) != pytest.approx(pld_epsilon(multipliers, 1e-5), rel=0.01)
    assert acc.compose_gdp([]) == 0.0


@relaxed
@given(epsilons, deltas, counts, relations)
def test_epsilon_to_noise_and_back_never_exceeds_the_budget(epsilon, delta, count, relation):
    z = acc.noise_multiplier_for(epsilon, delta, count, relation)
    back = acc.epsilon_of(z, count, delta, relation)
    assert epsilon * (1 - 1e-6) <= back <= epsilon
    assert acc.participations_for(epsilon, delta, z, relation) == count
    assert acc.participations_for(epsilon, delta, z * (1 - 1e-6), relation) < count or count > 100_000


def test_not_even_one_participation():
    assert acc.participations_for(0.1, 1e-5, 0.5, "add-remove") == 0


@relaxed
@given(epsilons, deltas, counts, relations, st.floats(1.01, 4))
def test_everything_is_monotone(epsilon, delta, count, relation, factor):
    z = acc.noise_multiplier_for(epsilon, delta, count, relation)
    assert acc.noise_multiplier_for(epsilon * factor, delta, count, relation) < z
    assert acc.noise_multiplier_for(epsilon, min(delta * factor, 0.9), count, relation) < z
    assert acc.noise_multiplier_for(epsilon, delta, count + 1, relation) > z
    assert acc.noise_multiplier_for(epsilon, delta, count, "replace-one") >= z
    assert acc.epsilon_of(z * factor, count, delta, relation) < acc.epsilon_of(z, count, delta, relation)
    assert acc.epsilon_of(z, count + 1, delta, relation) > acc.epsilon_of(z, count, delta, relation)
    assert acc.participations_for(epsilon * factor, delta, z, relation) >= count


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_sampling_is_between_what_is_attained_and_the_full_batch(relation, accountant):
    z, q, steps, delta = 4.0, 0.5, 60, 1e-5
    epsilon = sampled_epsilon(z, q, steps, delta, relation, accountant)
    side = dp.NeighboringRelation[{"add-remove": "ADD_OR_REMOVE_ONE", "replace-one": "REPLACE_ONE"}[relation]]
    attained = dp.pld.PLDAccountant(side).compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)), steps)
    assert attained.get_epsilon(delta) * (1 - 1e-6) <= epsilon <= acc.epsilon_of(z, steps, delta, relation)
    assert epsilon <= attained.get_epsilon(delta) * 1.3
    half = sampled_epsilon(z, q, steps, delta, "add-remove", accountant)
    assert relation == "add-remove" or 2 * half < epsilon  # twice the add-remove epsilon would be too little


def test_sampling_everything_is_the_full_batch():
    for relation in RELATIONS:
        assert sampled_epsilon(24.7, 1.0, 60, 1e-4, relation) == pytest.approx(
            acc.epsilon_of(24.7, 60, 1e-4, relation), rel=0.01
        )


@pytest.mark.parametrize("relation", RELATIONS)
def test_calibrated_sampled_noise_meets_the_budget(relation):
    z = sampled_noise_multiplier(1.0, 1e-5, 0.1, 100, relation)
    assert 0.995 < sampled_epsilon(z, 0.1, 100, 1e-5, relation) <= 1.0
    assert z < acc.noise_multiplier_for(1.0, 1e-5, 100, relation)


def test_theorem_1_to_the_letter():
    r = 1 - 10 * 0.04
    assert paper_sensitivity(10, 0.04, 10, 1.0) == pytest.approx((1 - r**10) / (1 - r) * 4 * 0.04)
    assert paper_sensitivity(10, 0.2, 7, 1.5) == pytest.approx(4 * 0.2 * 7 * 1.5)
    assert paper_sensitivity(10, 0.2 * (1 + 1e-9), 7, 1.5) == pytest.approx(4 * 0.2 * 7 * 1.5)
    assert paper_sensitivity(10, 0.1, 5, 1.0) == pytest.approx(0.4)
    assert paper_sigma(2.0, 0.5, 1e-4) == pytest.approx(2 * math.sqrt(2 * math.log(12500)) / 0.5)


def test_theorem_2_and_its_inverse():
    mnist = {"steps": 10, "batch_size": 10, "examples": 600, "participants": 30, "clients": 100}
    assert paper_round_epsilon(10, **mnist, rounds=200) == pytest.approx(42.4, abs=0.05)
    assert paper_round_epsilon(10, **mnist, rounds=100) == pytest.approx(60.0)
    assert paper_total_epsilon(60.0, **mnist, rounds=100) == pytest.approx(10.0)
    assert paper_total_epsilon(60.0, 10, 10, 600, 30, 100, 100, c0=2.0) == pytest.approx(20.0)
    for steps in (60, 100):
        with pytest.raises(ConfigError, match="at most 59 steps"):
            paper_round_epsilon(10, **(mnist | {"steps": steps}), rounds=100)
    with pytest.raises(ConfigError, match="at most 32 steps"):
        paper_round_epsilon(10, 33, 10, 325, 30, 100, 100)


@pytest.mark.parametrize("rounds", [100, 200])
def test_face_value_of_a_total_epsilon_of_20(rounds):
    """12011 by exact composition for any T; 4163 if Poisson sampling is granted too (T = 200)."""
    one = paper_round_epsilon(20, 10, 10, 600, 30, 100, rounds)
    sensitivity = paper_sensitivity(10, 0.04, 10, 1.0)
    sigma = paper_sigma(sensitivity, one, 1e-4)
    count = round(0.3 * rounds)
    face = acc.epsilon_of(sigma / sensitivity, count, 1e-4, "add-remove")
    assert face == pytest.approx(12011, rel=1e-3)
    assert face == pytest.approx(pld_epsilon([sigma / sensitivity / math.sqrt(count)], 1e-4, interval=0.1), rel=0.01)
    granted = sampled_epsilon(sigma / sensitivity, 1 / 6, count, 1e-4, "add-remove")
    assert granted == pytest.approx({100: 5251, 200: 4163}[rounds], rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: acc.gdp_epsilon(1.0, 2.0), r"^Expected delta=2.0 in \(0, 1\)\.$"),
        (lambda: acc.gdp_epsilon(1.0, math.nan), "delta=nan"),
        (lambda: acc.gdp_epsilon(-1.0, 0.1), "mu=-1"),
        (lambda: acc.gdp_epsilon(math.nan, 0.1), "mu=nan"),
        (lambda: acc.gdp_mu(0.0, 0.1), r"epsilon=0.0 in \(0, inf\)"),
        (lambda: acc.gdp_mu(math.inf, 0.1), "epsilon=inf"),
        (lambda: acc.gdp_delta(-1.0, 1.0), "epsilon=-1"),
        (lambda: acc.epsilon_of(0.0, 1, 0.1, "add-remove"), "noise_multiplier=0"),
        (lambda: acc.epsilon_of(1.0, 0, 0.1, "add-remove"), "participations=0"),
        (lambda: acc.epsilon_of(1.0, 1.5, 0.1, "add-remove"), "participations=1.5"),
        (lambda: acc.epsilon_of(1.0, 1, 0.1, "swap"), "relation='swap' to be one of add-remove, replace-one"),
        (lambda: acc.compose_gdp([1.0, math.nan]), "noise_multiplier=nan"),
        (lambda: sampled_epsilon(1.0, 0.0, 1, 0.1, "add-remove"), "sampling probability=0"),
        (lambda: sampled_epsilon(1.0, 0.1, 1, 0.1, "add-remove", "f"), "accountant='f'"),
        (lambda: paper_sensitivity(10, -0.1, 1, 1.0), "step_size=-0.1"),
        (lambda: paper_sigma(1.0, 0.0, 0.1), "epsilon=0"),
        (lambda: paper_round_epsilon(1, 1, 1, 10, 5, 4, 1), "participants=5 <= clients=4"),
    ],
)
def test_errors_name_the_value_and_the_limit(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
