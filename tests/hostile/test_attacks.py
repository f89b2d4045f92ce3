"""Simulated attackers: what they do, and what checks and aggregates do about it."""

import numpy as np
import pytest

from fedpdm.config import load_config
from fedpdm.data.prepare import build_federation
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.errors import ConfigError
from fedpdm.hostile.attacks import Attack, attackers_of, poisoned
from fedpdm.privacy.band import chi_most, radius
from fedpdm.runs.attackers import attack_summary, attack_words

BASE = [
    "data.name=digits",
    "data.features=raw",
    "data.basis=none",
    "data.scaling=unit",
    "data.clients=20",
    "data.partition=iid",
]
BASE += ["rounds.participants=20", "rounds.total=12", "metrics.diagnose_every=0", "metrics.evaluate_every=12"]
BASE += ["algorithm.rho=0.05", "local.step_size=3.0", "privacy.epsilon=8.0"]


def trained(*settings: str):
    config = load_config("demo", [*BASE, *settings])
    simulation = build_simulation(config, build_federation(config, progress=False))
    rows = list(simulation.run())
    return rows[-1]["test_accuracy"], sum(row.get("refused", 0) for row in rows), simulation


@pytest.fixture(scope="module")
def clean() -> float:
    return trained()[0]


@pytest.mark.parametrize(("kind", "refused"), [("sign-flip", True), ("strongest", False)])
def test_attackers_are_refused_or_stay_within_the_band(kind, refused, clean):
    accuracy, count, simulation = trained(f"attack.kind={kind}", "attack.clients=2")
    if refused:  # three messages of each, then they are not asked any more
        assert count == 6
        summary = attack_summary(simulation)
        assert len(summary["left_out"]) == 2
        assert sorted(summary["attackers"]) == summary["left_out"]
        words = attack_words(load_config("demo", [*BASE, "attack.kind=sign-flip", "attack.clients=2"]), summary)
        assert "the server refused 6 messages, and did not ask 2 of the clients again" in words
        assert accuracy > clean - 0.03
    else:
        assert count == 0


def test_the_strongest_message_moves_the_mean_as_far_as_the_theorem_says_and_no_farther():
    """One of K = 20: at most 2U/K from where its honest message would have left the mean, and the attack comes near to it."""
    one = ["algorithm.name=fedavg", "rounds.total=1", "metrics.evaluate_every=1", "problem.penalty=none", "problem.gamma=0.0"]
    one += ["compression.values=float32"]
    honest, attacked = trained(*one)[2], trained(*one, "attack.kind=strongest", "attack.clients=1")[2]
    band, plan, step = attacked.setup.band, attacked.plan, attacked.setup.local.step_size
    (slots,) = set(attacked.federation.slots[list(attacked.schedule.attack.clients)].tolist())
    size, sigma = attacked.state.server.x0.size, plan.noise_multiplier * plan.sensitivity(step, slots)
    most = float(chi_most(size, radius(band, step, 0.0), sigma, band.failure / 2))
    moved = float(np.linalg.norm(attacked.state.server.x0 - honest.state.server.x0))
    assert 0.9 * most / 20 < moved <= 2 * most / 20 * (1 + 1e-3)


def test_without_the_check_two_of_twenty_ruin_the_mean(clean):
    ruined, _, _ = trained("attack.kind=sign-flip", "attack.clients=2", "attack.checks=false")
    assert ruined < clean - 0.3


def test_more_attackers_include_fewer_ones_and_labels_change_for_them_alone():
    config = load_config("demo", BASE)
    federation = build_federation(config, progress=False)
    few, many = attackers_of(2, 20, 0), attackers_of(5, 20, 0)
    assert many[:2] == few
    flipped = poisoned(Attack("label-flip", few, 10.0, 20), federation)
    same = np.all(flipped.labels == federation.labels, axis=1)
    assert sorted(np.flatnonzero(~same)) == sorted(few)
    assert set(np.unique(poisoned(Attack("one-class", few, 10.0, 20), federation).labels[list(few)])) == {0}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["attack.kind=scaling"], "belong together"),
        (["attack.clients=3"], "belong together"),
        (["attack.kind=scaling", "attack.clients=300"], "more than data.clients"),
        (["attack.kind=strongest", "attack.clients=2", "privacy.trust=cohorts"], "messages that are seen"),
        (
            ["attack.kind=missing-noise", "attack.clients=2", "privacy.mechanism=none", "privacy.epsilon=", "privacy.clip="],
            "noise",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        load_config("demo", [*BASE, *settings])
