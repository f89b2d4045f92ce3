"""The audit finds mechanisms that are broken, on purpose or as published, and finds no breach of the sound one."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.algorithms import Examples
from fedpdm.audit import attacks, audit, verdict
from fedpdm.audit.drawing import plot
from fedpdm.choices import LOSSES
from fedpdm.choices.words import MODES
from fedpdm.compression.sparsify import top_k_mask
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import gdp_epsilon
from fedpdm.privacy.mechanism import Mechanism, Release, untouched
from fedpdm.problem import softmax, squared
from fedpdm.setup.build import build_setup

RUNS = 3000
FEDERATION = audit.small_federation()


def run(setup, claim, attack):
    arrays = (jnp.asarray(a) for a in (FEDERATION.features, FEDERATION.labels, FEDERATION.sizes))
    return audit.audit(setup, Examples(*arrays, jnp.int32(0)), 2, claim, attack=attack, radius=1.0, runs=RUNS)


def with_privacy(config, **changes):
    return config.model_copy(update={"privacy": config.privacy.model_copy(update=changes)})


def sound(attack, **changes):
    """Setup, plan and claim at epsilon 1, to be broken by the test."""
    config = with_privacy(audit.small_config("sound", attack, 1.0, "linearised"), **changes)
    setup, plan = build_setup(config, FEDERATION)
    return setup, plan, audit.claim_of(config, plan, 1)


def standard_error(result):
    """Of the shift in standard deviations between two samples of runs/2 scores."""
    return math.sqrt(2 * (1 + result.measured_shift**2 / 8) / (result.runs / 2))


@pytest.mark.parametrize(("attack", "least"), [("dual", 1.0), ("steps", 5.0), ("support", 5.0)])
def test_the_papers_mechanism_is_breached(attack, least):
    result = audit.audit_federation(audit.small_config("paper", attack), FEDERATION, attack, runs=2000)
    assert result.breached
    assert result.lower_bound > max(least, result.claimed_epsilon)
    assert "refuted" in result.sentence
    if attack == "dual":  # the dual, not the composition: more than Theorem 1's sensitivity allows without any sampling
        assert result.measured_shift > 2 * result.theory_shift


@pytest.mark.parametrize(
    ("mode", "epsilon"),
    [(mode, 4.0) for mode in MODES] + [("linearised", 0.5), ("linearised", 1.0), ("contractive", 0.5)],
)
def test_the_sound_mechanism_holds_in_every_mode(mode, epsilon):
    result = audit.audit_federation(audit.small_config("sound", "canary", epsilon, mode), FEDERATION, "canary", runs=RUNS)
    assert not result.breached
    assert result.theory_shift == pytest.approx(result.claimed_mu)
    assert gdp_epsilon(result.theory_shift, result.delta) == pytest.approx(epsilon, rel=1e-6)
    assert result.measured_shift < result.theory_shift + 3.5 * standard_error(result)
    if mode in ("linearised", "contractive", "every-step"):  # the canary is the worst case: the theory is met
        assert result.measured_shift > 0.98 * result.theory_shift - 3.5 * standard_error(result)


NUMBERS = {row.name: row.target for row in LOSSES.values() if row.target != "classes"}
ONE_ROW = [mode for mode in MODES if mode != "batch-clipped"]  # whose bound covers all rows: one of them does next to nothing


@pytest.mark.parametrize("mode", ONE_ROW)
@pytest.mark.parametrize("loss", NUMBERS)
def test_the_sound_mechanism_holds_for_every_loss_of_a_number_in_every_mode(loss, mode):
    config, federation = audit.small_config("sound", "canary", 4.0, mode, loss), audit.small_federation(target=NUMBERS[loss])
    result = audit.audit_federation(config, federation, "canary", runs=1000)
    assert not result.breached
    noise = 3.5 * standard_error(result)
    assert result.measured_shift < result.theory_shift + noise
    # The theory is met, but for certified solutions: their bound covers every solver that reaches the tolerance.
    assert result.measured_shift > (0.05 if mode == "certified" else 0.9) * result.theory_shift - noise


def test_a_residual_that_is_not_cut_is_found():
    config = audit.small_config("sound", "canary", 4.0, "linearised", "squared")
    federation = audit.small_federation(target="number")
    setup, plan = build_setup(config, federation)
    setup = setup._replace(problem=setup.problem._replace(loss=squared()))
    arrays = (jnp.asarray(a) for a in (federation.features, federation.labels, federation.sizes))
    claim = audit.claim_of(config, plan, 1)
    assert audit.audit(setup, Examples(*arrays, jnp.int32(0)), 1, claim, attack="canary", radius=1.0, runs=1000).breached


@pytest.mark.parametrize("attack", ["dual", "steps", "support"])
def test_the_sound_mechanism_holds_against_the_attacks_on_the_papers(attack):
    result = audit.audit_federation(audit.small_config("sound", attack, 4.0, "linearised"), FEDERATION, attack, runs=RUNS)
    assert not result.breached
    assert "no breach" in result.sentence


@pytest.mark.parametrize("clip", [0.3, 1.3])  # far below the natural bound of sqrt(2), and close to it
def test_replace_one_is_twice_the_shift_and_holds(clip):
    config = with_privacy(audit.small_config("sound", "canary", 4.0, "linearised"), relation="replace-one", clip=clip)
    result = audit.audit_federation(config, FEDERATION, "canary", runs=RUNS)
    assert not result.breached
    assert result.relation == "replace-one"
    assert result.measured_shift == pytest.approx(result.theory_shift, abs=3.5 * standard_error(result))


@pytest.mark.parametrize("kind", ["shared-randk", "public-topk"])
def test_a_support_is_attacked_as_hard_and_holds(kind):
    config = audit.small_config("sound", "canary", 4.0, "linearised")
    config = config.model_copy(update={"compression": config.compression.model_copy(update={"kind": kind, "uplink": 0.5})})
    result = audit.audit_federation(config, FEDERATION, "canary", runs=RUNS)
    assert not result.breached
    assert 0.4 * result.theory_shift < result.measured_shift < result.theory_shift + 3.5 * standard_error(result)


def test_the_first_vector_of_scaffold_is_attacked():
    config = audit.small_config("sound", "canary", 4.0, "linearised")
    config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"name": "scaffold"})})
    result = audit.audit_federation(config, FEDERATION, "canary", runs=RUNS)
    assert not result.breached
    assert 3.5 * standard_error(result) < result.measured_shift < result.theory_shift + 3.5 * standard_error(result)


def test_too_little_noise_is_found():
    setup, _, claim = sound("canary")
    honest = setup.privacy.release_solution

    def quiet(x, release):
        noised = honest(x, release)
        return noised._replace(value=x + (noised.value - x) / 5)

    result = run(setup._replace(privacy=setup.privacy._replace(release_solution=quiet)), claim, "canary")
    assert result.breached
    assert result.measured_shift == pytest.approx(5 * result.theory_shift, rel=0.1)


def test_noise_behind_the_dual_is_found():
    """The sound sigma in the paper's order: the message is noised as much as before, the dual is not."""
    setup, plan, claim = sound("dual")

    def release_message(message, release: Release):
        noised = plan.privacy.release_solution(message, release)
        # y = 2 x - ..., so that its noise is twice that of x
        return noised._replace(value=message + 2 * (noised.value - message))

    result = run(setup._replace(privacy=Mechanism("sound", untouched, release_message)), claim, "dual")
    assert result.breached
    assert result.measured_shift > 2 * result.theory_shift


def test_selection_before_the_noise_is_found():
    setup, _, claim = sound("support")
    honest = setup.privacy.release_solution

    def select_first(x, release):
        noised = honest(x, release)
        return noised._replace(value=jnp.where(top_k_mask(x, x.size // 2), noised.value, 0.0))

    result = run(setup._replace(privacy=setup.privacy._replace(release_solution=select_first)), claim, "support")
    assert result.breached
    assert result.lower_bound > 3


def test_a_loss_without_its_clip_is_found():
    setup, _, claim = sound("canary", clip=0.1)
    result = run(setup._replace(problem=setup.problem._replace(loss=softmax())), claim, "canary")
    assert result.breached
    assert result.measured_shift == pytest.approx(math.sqrt(2) / 0.1 * result.theory_shift, rel=0.1)


def test_same_seed_same_result():
    config = audit.small_config("sound", "canary", mode="linearised")
    first, second = (audit.audit_federation(config, FEDERATION, "canary", runs=200, seed=3) for _ in range(2))
    assert np.array_equal(first.scores_with, second.scores_with)
    assert not np.array_equal(first.scores_with, first.scores_without)


def scores(mu, runs, seed=0):
    rng = np.random.default_rng(seed)
    return attacks.Scores(rng.normal(mu, 1, runs), rng.normal(0, 1, runs), mu)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_bounds_hold_with_their_confidence_for_a_gaussian(mu):
    """The claim is exactly true, so that a 95 % bound may exceed it in 5 % of the audits at most."""
    claim = verdict.Claim("sound", gdp_epsilon(mu, 1e-5), 1e-5, "add-remove", (0,), mu)
    results = [verdict.judge(scores(mu, 2000, seed), claim, "canary") for seed in range(100)]
    assert sum(result.breached for result in results) <= 10
    assert all(result.lower_bound <= claim.epsilon for result in results)


def test_an_understated_mu_is_found():
    claim = verdict.Claim("sound", gdp_epsilon(0.5, 1e-5), 1e-5, "add-remove", (0,), 0.5)
    assert verdict.judge(scores(0.7, 20_000), claim, "canary").breached


def test_full_separation_is_limited_by_the_runs():
    claim = verdict.Claim("paper", 0.5, 1e-5, "replace-one", (0,))
    result = verdict.judge(attacks.Scores(np.ones(2000), np.zeros(2000), 0.0), claim, "steps")
    rate = 1 - 0.025 ** (1 / 1000)  # no error in 1000 runs
    assert result.lower_bound == pytest.approx(math.log((1 - 1e-5 - rate) / rate))
    same = verdict.judge(attacks.Scores(np.zeros(2000), np.zeros(2000), 0.0), claim, "steps")
    assert same.lower_bound == 0
    assert not same.breached


def test_plot_and_json(tmp_path):
    claim = verdict.Claim("sound", 1.0, 1e-5, "add-remove", (0,), 0.27)
    result = verdict.judge(scores(0.27, 1000), claim, "canary")
    plot(result, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000
    assert verdict.to_json(result)["lower_bound"] == result.lower_bound
    assert "scores_with" not in verdict.to_json(result)


def test_errors_say_what_would_do():
    config = audit.small_config("sound", "canary")
    with pytest.raises(ConfigError, match="choose one of dual, steps, support, canary"):
        audit.audit_federation(config, FEDERATION, "guess")
    with pytest.raises(ConfigError, match="runs=10 >= 100"):
        audit.audit_federation(config, FEDERATION, "canary", runs=10)
    with pytest.raises(ConfigError, match="claims nothing"):
        audit.audit_federation(with_privacy(config, mechanism="none", epsilon=None), FEDERATION, "canary")
