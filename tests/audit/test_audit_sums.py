"""The audit of secure sums: within Theorem S1's claim, and beyond it if noise is missing or members have their own duals."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.algorithms.local import Examples
from fedpdm.audit.attacks import attack_client
from fedpdm.audit.audit import audit_federation, claim_of
from fedpdm.audit.sums import attack_own_duals, seen_by_adversary
from fedpdm.config import load_config
from fedpdm.data import federation_from_arrays
from fedpdm.setup.build import build_setup

SETTINGS = (
    "data.name=digits",
    "data.partition=iid",
    "data.clients=6",
    "data.radius=1.0",
    "algorithm.rho=0.1",
    "algorithm.server_rule=dual-memory",
    "local.batch_size=0",
    "local.steps=1",
    "local.step_size=4.0",
    "rounds.total=6",
    "rounds.participants=6",
    "rounds.all_first=false",
    "privacy.mechanism=sound",
    "privacy.epsilon=3.0",
    "privacy.mode=linearised",
    "privacy.trust=cohorts",
    "cohorts.size=6",
    "cohorts.colluding=1",
    "cohorts.dropouts=1",
)


def six_clients():
    rng = np.random.default_rng(0)
    parts = []
    for size in (20, 30, 40, 30, 30, 30):
        x = rng.normal(size=(size, 8))
        x[:, -1] = 0
        parts.append((x / np.linalg.norm(x, axis=1, keepdims=True), rng.integers(0, 2, size)))
    return federation_from_arrays(parts, parts[0][0], parts[0][1], name="random")


@pytest.mark.parametrize("client", [0, 2])  # the smallest and the largest
def test_the_measured_shift_of_sums_stays_within_the_theorem(client):
    result = audit_federation(load_config("plain", SETTINGS), six_clients(), "canary", runs=6000, client=client)
    assert not result.breached
    # The canary's gradient is as large as it can be, so the bound is nearly reached: 4 standard errors of the estimate.
    assert result.theory_shift - 0.15 <= result.measured_shift <= result.theory_shift + 4 * math.sqrt(2 / 3000)


def test_members_that_add_no_noise_are_caught():
    config, data = load_config("plain", SETTINGS), six_clients()
    setup, plan = build_setup(config, data)
    claim = claim_of(config, plan, data.clients)
    x0 = jnp.zeros((2, 8))
    sabotaged = seen_by_adversary(setup, x0, noisy_members=1)
    arrays = (jnp.asarray(part) for part in (data.features, data.labels, data.sizes))
    how = {"attack": "dual", "relation": claim.relation, "rounds": claim.rounds, "radius": 1.0, "runs": 4000, "seed": 0}
    scores = attack_client(sabotaged, Examples(*arrays, jnp.int32(0)), 2, **how)
    # The dual attack sends the zero model, at which half of the largest gradient is there: the clip.
    assert scores.shift > 1.5 * claim.mu


@pytest.mark.parametrize(("forgetting", "least"), [(0.0, 2.0), (0.5, 1.4)])
def test_own_duals_under_changing_cohorts_break_the_claim(forgetting, least):
    found = attack_own_duals(forgetting=forgetting, runs=10_000)
    assert found.measured >= least * found.claimed
    assert found.measured == pytest.approx(found.possible, rel=0.1)
