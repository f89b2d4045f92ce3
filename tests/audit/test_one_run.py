"""Lower bounds from one run hold with their confidence for any mechanism, and are large if something is wrong."""

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from fedpdm.audit import audit
from fedpdm.audit.one_run import guess, least_epsilon, least_mu, place_canaries, refuted
from fedpdm.errors import ConfigError
from fedpdm.setup.build import build_setup

MU = 1.0


def gaussian_inverse(mu):
    return lambda y: float(ndtr(ndtri(min(y, 1.0)) - mu))


def pure_inverse(epsilon):
    return lambda y: max(0.0, math.exp(-epsilon) * y, 1 - math.exp(epsilon) * (1 - y))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_bound_covers_randomised_response_exactly(epsilon):
    """Its guesses are independent, right with probability q: the binomial tail is the truth, which no bound may undercut."""
    q = 1 / (1 + math.exp(-epsilon))
    for m in (1, 2, 5, 40):
        for v in range(1, m + 1):
            truth = float(binom.sf(v - 1, m, q))
            assert not refuted(m, m, v, truth * (1 - 1e-9), pure_inverse(epsilon)), (m, v)


def test_the_bound_is_of_use():
    """With one canary and one guess it is exact; with many it refutes an epsilon that is clearly too small."""
    assert refuted(1, 1, 1, 0.8, pure_inverse(math.log(0.79 / 0.21)))
    assert not refuted(1, 1, 1, 0.8, pure_inverse(math.log(0.81 / 0.19)))
    assert least_epsilon(1000, 200, 184, 0.05, 1e-5) > 1.5
    assert least_mu(1000, 200, 184, 0.05) > 0.6
    assert least_mu(1000, 200, 100, 0.05) == 0
    assert least_epsilon(1000, 200, 0, 0.05, 1e-5) == 0


def right_guesses(rng, there, mechanism):
    return guess(mechanism(rng, there), there)


def gaussian(rng, there):
    return rng.normal(size=len(there)) + MU * there


def all_or_nothing(rng, there):
    """(0, 0.2)-DP, and its guesses depend on each other as much as they can: all are right, or none is informative."""
    return there + 0.0 if rng.random() < 0.2 else rng.random(len(there))


@pytest.mark.parametrize("mechanism", [gaussian, all_or_nothing])
def test_bounds_exceed_the_truth_in_five_of_a_hundred_audits_at_most(mechanism):
    rng, exceeded = np.random.default_rng(0), 0
    for _ in range(200):
        there = rng.integers(0, 2, 100)
        found = right_guesses(rng, there, mechanism)
        counts = len(there), found.guesses, found.right
        if mechanism is gaussian:
            exceeded += refuted(*counts, 0.05, gaussian_inverse(MU))
        else:
            exceeded += least_epsilon(*counts, 0.05, 0.2) > 0.01
    assert exceeded <= 20  # of 10 that are expected at most


def test_taking_guesses_for_independent_would_be_wrong():
    """Negative control: the binomial tail with the accuracy of one guess refutes a claim that is true."""
    rng, exceeded = np.random.default_rng(1), 0
    for _ in range(100):
        there = rng.integers(0, 2, 100)
        found = right_guesses(rng, there, all_or_nothing)
        one_guess = 0.5 + 0.2 / 2  # what (0, 0.2)-DP allows for one
        exceeded += binom.sf(found.right - 1, found.guesses, one_guess) < 0.05
    assert exceeded > 10


def sound(epsilon, canaries=60):
    config = audit.small_config("sound", "canary", epsilon, "linearised")
    return config, audit.small_federation(canaries + 20, canaries + 1)


def test_one_run_of_the_sound_mechanism_keeps_its_claim_and_one_with_less_noise_does_not(monkeypatch):
    config, federation = sound(0.5)
    honest = audit.audit_one_run(config, federation, 60)
    assert not honest.breached
    assert "one run with 12 guesses about 60 rows" in honest.sentence
    assert honest.measured_shift == pytest.approx(honest.claimed_mu, abs=0.8)
    setup, plan = build_setup(config, federation)

    def quiet(x, release):
        noised = setup.privacy.release_solution(x, release)
        return noised._replace(value=x + (noised.value - x) / 20)

    broken = setup._replace(privacy=setup.privacy._replace(release_solution=quiet))
    monkeypatch.setattr(audit, "build_setup", lambda *_: (broken, plan))
    found = audit.audit_one_run(config, federation, 60)
    assert found.breached
    assert found.measured_shift > 10 * found.claimed_mu


def test_canaries_need_room():
    config, federation = sound(1.0, canaries=20)
    setup, _ = build_setup(config, federation)
    with pytest.raises(ConfigError, match="one per feature"):
        place_canaries(setup, np.zeros((5, 8)), 2, 9, 1.0)
    with pytest.raises(ConfigError, match="one per example"):
        audit.audit_one_run(config, federation, 100)
    replaced = config.model_copy(update={"privacy": config.privacy.model_copy(update={"relation": "replace-one"})})
    with pytest.raises(ConfigError, match="add-remove"):
        audit.audit_one_run(replaced, federation, 10)
