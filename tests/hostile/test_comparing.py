"""Sums against sums: who is refused, who is traced, and that honest members stay."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.config import load_config
from fedpdm.data.prepare import build_federation
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.errors import ConfigError
from fedpdm.hostile.comparing import ENOUGH, compare, left_out, more_evidence, standing
from fedpdm.participation import cohort_roster
from fedpdm.runs.attackers import attack_summary, attack_words

BASE = ["data.name=digits", "data.features=raw", "data.basis=none", "data.scaling=unit", "data.clients=60"]
BASE += ["data.partition=iid", "rounds.participants=60", "rounds.total=24", "metrics.diagnose_every=0"]
BASE += ["metrics.evaluate_every=24", "algorithm.name=fedavg", "algorithm.rho=10.0", "algorithm.server_rule=participants"]
BASE += ["local.steps=1", "local.step_size=20.0", "privacy.epsilon=40.0", "privacy.mode=linearised", "privacy.clip=0.5"]
BASE += ["compression.values=float32", "privacy.trust=cohorts", "cohorts.size=5", "cohorts.members=new"]
FLIP = ["attack.kind=sign-flip", "attack.clients=6"]


def trained(*settings: str):
    config = load_config("demo", [*BASE, *settings])
    simulation = build_simulation(config, build_federation(config, progress=False))
    rows = list(simulation.run())
    return rows[-1]["test_accuracy"], simulation, config


@pytest.fixture(scope="module")
def clean() -> float:
    accuracy, simulation, _ = trained("cohorts.compare=true")
    assert not left_out(simulation.state.evidence).any()
    return accuracy


def test_attackers_inside_sums_are_found_by_rosters_that_change_and_nobody_else_is(clean):
    accuracy, simulation, config = trained("cohorts.compare=true", *FLIP)
    summary = attack_summary(simulation)
    assert summary["left_out"] == sorted(summary["attackers"])
    assert "did not ask 6 of the clients again" in attack_words(config, summary)
    assert accuracy > clean - 0.05
    ruined = trained(*FLIP)[0]  # the same without the comparison: the control
    assert ruined < clean - 0.1


def sums(hostile: int, cohorts: int = 20, size: int = 400, noise: float = 0.1, seed: int = 0) -> np.ndarray:
    """Sums with one common direction and noise, some of them turned round."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=size)
    common /= np.linalg.norm(common)
    signs = np.where(np.arange(cohorts) < hostile, -1.2, 1.0)
    return (signs[:, None] * common + noise * rng.normal(size=(cohorts, size))).astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_turned_sums_are_contradicted_below_one_half_though_they_are_as_long_as_others(seed):
    """The noise is twice as long as the data: no single sum shows it, and the geometric median of all is near zero."""
    moves = sums(8, seed=seed)
    found = compare(jnp.asarray(moves), jnp.ones(20, bool), jnp.full(20, 0.1), 400)
    assert np.asarray(found.contradicted).tolist() == [place < 8 for place in range(20)]


def test_votes_decide_where_half_of_the_sums_are_turned():
    moves, everybody, noise = jnp.asarray(sums(11)), jnp.ones(20, bool), jnp.full(20, 0.1)
    assert compare(moves, everybody, noise, 400).contradicted[11:].all()  # the larger side is right
    evidence = jnp.where(jnp.arange(20) < 11, 2.0, -2.0)[:, None] * jnp.ones(5)
    votes = standing(evidence, jnp.ones((20, 5), bool))
    assert compare(moves, everybody, noise, 400, votes).contradicted[:11].all()


def test_noise_alone_contradicts_nothing_and_closed_sums_have_no_say():
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        moves = jnp.asarray(0.1 * rng.normal(size=(20, 400)), jnp.float32)
        refused += int(compare(moves, jnp.ones(20, bool), jnp.full(20, 0.1), 400).contradicted.sum())
    assert refused <= 40  # of 4,000: beyond three deviations on one side, and what the split in two sides adds
    moves = jnp.asarray(np.vstack([sums(2, 6), 1e6 * np.ones((14, 400), np.float32)]))
    opened = jnp.arange(20) < 6
    found = compare(jnp.where(opened[:, None], moves, 0.0), opened, jnp.full(20, 0.1), 400)
    assert np.flatnonzero(found.contradicted).tolist() == [0, 1]


def test_evidence_against_an_honest_member_is_a_bet_that_nobody_wins():
    """Rosters at random, tests that are right or pure chance: the share of honest members left out stays below 1/ENOUGH."""
    rng, runs, rounds, size = np.random.default_rng(1), 60, 30, 100
    wrong = found = 0
    for run in range(runs):
        hostile = np.zeros(size, bool)
        hostile[:10] = run % 2
        evidence = jnp.zeros(size)
        for _ in range(rounds):
            groups = rng.permutation(size).reshape(20, 5)
            bad = hostile[groups].any(axis=1) if run % 2 else rng.random(20) < 0.3
            flags = np.zeros(size, bool)
            flags[groups.ravel()] = np.repeat(bad, 5)
            evidence = more_evidence(evidence, jnp.ones(size, bool), jnp.asarray(flags))
        out = np.asarray(left_out(evidence))
        wrong, found = wrong + (out & ~hostile).sum(), found + (out & hostile).sum()
    assert found == 10 * runs // 2
    honest = runs * size - found
    assert wrong / honest < 1 / ENOUGH + 4 * np.sqrt(1 / ENOUGH / honest)


def test_new_rosters_are_new_even_where_everybody_takes_part():
    how = {"rounds": 4, "clients": 20, "participants": 20, "seed": 0, "all_first": False}
    rosters = cohort_roster("cycle", size=5, fixed=False, **how)
    groups = [{frozenset(group) for group in chosen.reshape(4, 5).tolist()} for chosen, _ in rosters]
    assert len(set(map(frozenset, groups))) == 4
    assert all(sorted(chosen.tolist()) == list(range(20)) for chosen, _ in rosters)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["cohorts.size=30"], "a round has 2: it takes 3"),
        (["attack.checks=false", *FLIP], "needs the limits of an honest sum"),
        (["privacy.trust=local", "cohorts.size=0", "cohorts.members=fixed"], "has no effect"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        trained("cohorts.compare=true", *settings)


def test_attackers_who_frame_honest_members_get_few_of_them_left_out():
    """Ten of 100 spoil only the sum of the honest member with the most evidence: the harm is small."""
    members, attackers, size, lost = 100, 10, 5, []
    for seed in range(5):
        rng, evidence = np.random.default_rng(seed), jnp.zeros(members)
        for _ in range(30):
            there = np.flatnonzero(~np.asarray(left_out(evidence)))
            victim = max(there[there >= attackers], key=lambda client: float(evidence[client]))
            bad = np.zeros(members, bool)
            for cohort in np.array_split(rng.permutation(there), len(there) // size):
                bad[cohort] = victim in cohort and (cohort < attackers).any()
            evidence = more_evidence(evidence, jnp.isin(jnp.arange(members), there), jnp.asarray(bad))
        lost.append(int(np.sum(left_out(evidence)[attackers:])))
    assert 1 <= np.mean(lost) <= 4.5, lost
