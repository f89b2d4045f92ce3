"""The audit of secure sums: within Theorem S1's claim, and beyond it if noise is missing or members have their own duals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.algorithms.local import Examples
from fedpdm.audit.attacks import attack_client
from fedpdm.audit.audit import audit_federation, claim_of
from fedpdm.audit.sums import attack_own_duals, seen_by_adversary
from fedpdm.config import load_config
from fedpdm.data import federation_from_arrays
from fedpdm.privacy.mechanism import Release
from fedpdm.privacy.sharing import shared
from fedpdm.privacy.sums import Cohort, Lattice
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


@pytest.mark.parametrize(("forgetting", "rounds", "least"), [(0.0, 12, 2.0), (0.5, 12, 1.4), (0.82, 64, 1.4)])
def test_own_duals_under_changing_cohorts_break_the_claim(forgetting, rounds, least):
    found = attack_own_duals(forgetting=forgetting, later_rounds=rounds, runs=10_000)
    assert found.measured >= least * found.claimed
    assert found.measured == pytest.approx(found.possible, rel=0.1)
    precision = 1 / 19 + rounds * (1 - forgetting) ** 2 / 20
    assert found.possible == pytest.approx(found.claimed * math.sqrt(20 / (1 + 1 / precision)), rel=1e-3)


def shift_between_two_sums(reuse):
    """In standard deviations: of the difference between a sum with the canary and one at a model where its gradient is zero."""
    cohort, z, s, size, runs = Cohort(6, 1, 1), 5.0, 0.01, 16, 4000
    sums = shared(lambda r: s, z, size, cohort, Lattice(2**20, 32), 10.0).sums
    one, canary = jnp.float32(1.0), jnp.full(size, s / math.sqrt(size))

    def difference(key, with_canary):
        total = jnp.zeros(size, jnp.uint32)
        for member in range(cohort.honest):
            first, second = jax.random.split(jax.random.fold_in(key, member))
            second = first if reuse else second
            mine = canary * with_canary * (member == 0)
            total = total + sums.share(mine, Release(one, one, one, one, first))
            total = total - sums.share(0 * canary, Release(one, one, one, one, second))
        return sums.opened(total, one, one, Release(one, one, one, one, key)).value @ canary

    keys = jax.random.split(jax.random.key(0), 2 * runs).reshape(2, runs)
    with_it, without = (jax.jit(jax.vmap(lambda key, c=c: difference(key, c)))(keys[i]) for i, c in enumerate((1.0, 0.0)))
    spread = math.sqrt((float(with_it.var()) + float(without.var())) / 2)
    return float(with_it.mean() - without.mean()) / spread, 1 / z


def test_noise_from_a_seed_that_is_used_again_is_caught():
    fresh, claim = shift_between_two_sums(reuse=False)
    assert fresh < claim
    again, _ = shift_between_two_sums(reuse=True)
    assert again > 100 * claim


CLIENTS = (*SETTINGS, "privacy.mode=auto", "privacy.unit=client", "privacy.clip=0.2", "local.step_size=2.0")


@pytest.mark.parametrize("cut", [True, False])
def test_a_whole_client_is_hidden_by_the_cut_and_shows_without_it(cut):
    """The client's only row is the canary, so that what is attacked is all of it."""
    rows = np.eye(8)[:6, None, :]
    data = federation_from_arrays([(row, np.array([0])) for row in rows], rows[:, 0], np.zeros(6, int), name="single")
    config = load_config("plain", CLIENTS)
    setup, plan = build_setup(config, data)
    claim, x0 = claim_of(config, plan, data.clients), jnp.zeros((2, 8))
    if not cut:
        setup = setup._replace(privacy=setup.privacy._replace(sums=setup.privacy.sums._replace(limit=None)))
    arrays = (jnp.asarray(part) for part in (data.features, data.labels, data.sizes))
    how = {"attack": "dual", "relation": claim.relation, "rounds": claim.rounds, "radius": 1.0, "runs": 4000, "seed": 0}
    scores = attack_client(seen_by_adversary(setup, x0), Examples(*arrays, jnp.int32(0)), 2, **how)
    if cut:
        assert 0.5 * claim.mu < scores.shift < claim.mu + 4 * math.sqrt(2 / 2000)
    else:
        assert scores.shift > 1.5 * claim.mu
