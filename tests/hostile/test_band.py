"""An honest client is never refused; what no honest client can send is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from honest_kit import prepared, verdicts

from fedpdm.config import load_config
from fedpdm.errors import ConfigError
from fedpdm.hostile.check import Verdict, reason
from fedpdm.privacy.band import chi_least, chi_most, radius
from fedpdm.setup.band import band_of, no_band_because, sums_warning

# The million of benchmarks/honest.py runs over all cases.
SOME = [
    "fedpdm, contractive, automatic values",
    "fedpdm, certified, non-convex",
    "fedpdm, noised coordinates",
    "scaffold, random coordinates",
    "fedpdm, cohorts, few bits",
    "fedpdm, cohorts, whole clients",
]


@pytest.mark.parametrize("case", SOME)
def test_honest_clients_with_extreme_data_are_accepted(case):
    found = verdicts(case)
    assert bool(jnp.all(found.accepted)), reason(jax.tree.map(lambda value: value.ravel()[jnp.argmin(found.accepted)], found))


def test_the_radius_is_reached_so_that_no_smaller_one_would_do():
    """Equal rows of full norm with one label, and hardly any noise: the distance comes close to the limit."""
    found = verdicts("fedpdm, contractive", epsilon=3e4)
    assert bool(jnp.all(found.accepted))
    assert 0.95 < float(jnp.max(found.distance / found.most)) <= 1


def test_a_message_without_its_noise_is_refused():
    """The limits of an honest message, and the distance of one that leaves out the noise: at most the radius."""
    found = verdicts("fedpdm, contractive", epsilon=1.0)
    without = float(radius(prepared("fedpdm, contractive")[0].band, 0.4, 0.0))
    assert without < float(jnp.min(found.least))


@pytest.mark.parametrize(("dimension", "reach"), [(5, 0.0), (5, 30.0), (300, 0.0), (300, 20.0), (2000, 60.0)])
def test_the_tail_bounds_hold_by_brute_force(dimension, reach):
    """At a rate of failures that can be counted; the broken variant, without the noise's part of the radius, fails."""
    rng, failure, tries = np.random.default_rng(0), 0.01, 4000
    centre = np.zeros(dimension)
    centre[0] = reach
    lengths = np.array([np.linalg.norm(centre + 1.5 * rng.normal(size=dimension)) for _ in range(tries)])
    most, least = float(chi_most(dimension, reach, 1.5, failure)), float(chi_least(dimension, 1.5, failure))
    assert np.mean(lengths > most) <= failure
    assert np.mean(lengths < least) <= failure
    assert np.mean(lengths > max(reach, 1.5 * dimension**0.5)) > 0.1  # the control
    assert most < 2.5 * np.median(lengths)  # and it says something


def test_coordinates_chosen_by_their_values_may_have_little_noise():
    rng, failure = np.random.default_rng(0), 0.01
    smallest = [np.sqrt(np.sum(np.sort(rng.normal(size=200) ** 2)[:60])) for _ in range(2000)]
    assert np.mean(np.array(smallest) < float(chi_least(60, 1.0, failure, of=200))) <= failure
    assert np.mean(np.array(smallest) < float(chi_least(60, 1.0, failure))) > 0.5  # the control: as if chosen blindly


def test_a_refusal_names_the_test_the_value_and_the_limit():
    number = jnp.float32
    assert reason(Verdict(number(9), number(1), number(4), number(0), number(0))).startswith(
        "far: Its distance from the public"
    )
    assert "is 0.5; with its noise it is at least 1" in reason(Verdict(*map(number, (0.5, 1, 4, 0, 0))))
    assert reason(Verdict(*map(number, (2, 1, 4, 3, 0.1)))) == (
        "parts: Its vectors contradict each other by 3; rounding explains at most 0.1."
    )
    assert not bool(Verdict(*map(number, (jnp.nan, 1, 4, 0, 0))).accepted)


def test_settings_without_a_bound_have_no_band():
    setup = prepared("fedpdm, contractive")[0]
    bare = setup._replace(band=None)
    assert band_of(bare, None, None) is None
    assert "data.radius" in str(no_band_because(bare, None, None))
    rounded = prepared("feddyn, one pass")[0]
    rounded = rounded._replace(links=rounded.links._replace(values="int8"))
    assert "drifts away" in str(no_band_because(rounded, None, 1.0))
    for kind in ("randk", "noisy-topk", "topk, no noise"):  # the limits that ignore the state are FedPDM's own
        with pytest.raises(ConfigError, match="the state of feddr moves where nothing is sent"):
            prepared(f"feddr / {kind}")
    assert "Newton" in str(no_band_because(bare._replace(local=bare.local._replace(solver="newton")), None, 1.0))
    adaptive = bare._replace(algorithm=bare.algorithm._replace(solution=None))
    assert "adaptive rho" in str(no_band_because(adaptive, None, 1.0))


def test_a_run_of_secure_sums_says_first_that_members_are_not_checked():
    settings = ["privacy.trust=cohorts", "cohorts.size=10", "rounds.participants=100", "privacy.mode=linearised"]
    said = str(sums_warning(load_config("demo", settings)))
    assert said.startswith("not checked: single members")
    assert "With 10 cohorts in a round, cohorts.compare=true refuses sums" in said
    for size in (0, 100):  # 0: all clients
        alone = str(sums_warning(load_config("demo", [*settings, f"cohorts.size={size}"])))
        assert alone.startswith("not checked")
        assert "cohorts.compare" not in alone, "one cohort has nothing to be compared with"
    assert "10 cohorts" in str(sums_warning(load_config("demo", [*settings, "rounds.participants=0"])))
    assert sums_warning(load_config("demo")) is None
