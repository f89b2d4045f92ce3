"""The mechanisms as they run: the place of the noise, its size, its recorded cost, and refusals."""

import functools
import math
import sqlite3
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_federation

from fedpdm.algorithms import Broadcast, Examples, LocalPlan, fedpdm
from fedpdm.algorithms.local import solve
from fedpdm.config import Config, digest, validate
from fedpdm.data import Federation
from fedpdm.data.prepare import build_federation
from fedpdm.engines.simulation.build import build_simulation, resolved_simulation
from fedpdm.engines.simulation.simulation import Schedule, Simulation
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import (
    epsilon_of,
    gdp_delta,
)
from fedpdm.privacy.mechanism import Mechanism, Released, no_privacy, paper, sound, sound_every_step
from fedpdm.privacy.plan import Plan, choose_mode, plan_sound
from fedpdm.privacy.published import paper_round_epsilon, paper_sensitivity, paper_sigma
from fedpdm.privacy.sampling import sampled_epsilon
from fedpdm.privacy.sensitivity import Curvature
from fedpdm.problem import Problem, penalties, softmax
from fedpdm.rounds import ClientResult, Setup, client_round
from fedpdm.runs.folder import RunFolder, read_models
from fedpdm.runs.simulated_ledger import SimulatedLedger
from fedpdm.runs.train import run
from fedpdm.setup.build import build_setup

DIGITS = {
    "data.name": "digits",
    "data.clients": 10,
    "rounds.total": 12,
    "rounds.participants": 5,
    "rounds.sampling": "cycle",
    "rounds.all_first": False,
    "local.batch_size": 0,
    "local.step_size": 1.0,
    "metrics.diagnose_every": 6,
}
SOUND = DIGITS | {"privacy.mechanism": "sound", "privacy.epsilon": 3.0}
PAPER = DIGITS | {"privacy.mechanism": "paper", "privacy.epsilon": 10.0, "local.batch_size": 4, "local.step_size": 0.05}

KEY = jax.random.key(7)


def configure(settings: dict[str, Any]) -> Config:
    """From dotted keys; what is not named has its default."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        section, name = key.split(".")
        values.setdefault(section, {})[name] = value
    return validate(values)


@pytest.fixture(scope="module")
def digits() -> Federation:
    """The federation of every run under the sound mechanism here: features cut to norm 1."""
    return build_federation(configure(SOUND), progress=False)


def data_of(federation: Federation, client: int) -> Examples:
    arrays = (jnp.asarray(a) for a in (federation.features, federation.labels, federation.sizes))
    return Examples(*arrays, jnp.int32(client))


def small_setup(privacy: Mechanism, local: LocalPlan = LocalPlan(5, 0, 0.3)) -> Setup:
    return Setup(Problem(softmax(0.5), penalties.l1(0.01), 0.1), fedpdm(rho=0.5), local, privacy)


def some_state(seed: int = 3) -> tuple[Any, jax.Array]:
    dual, x0 = 0.3 * jax.random.normal(jax.random.key(seed), (2, 3, 5))
    return fedpdm(rho=0.5).init_client(x0)._replace(dual=dual), x0


COMPILED: dict[str, Any] = {}


def simulate(config: Config, federation: Federation, path: Path | None = None) -> Simulation:
    """A new simulation, with a ledger in the folder `path`; what is compiled for the same settings is shared."""
    ledger = functools.partial(SimulatedLedger, path / "ledger.sqlite", digest(config)) if path else None
    simulation = resolved_simulation(config, federation, ledger=ledger)
    simulation._compiled = COMPILED.setdefault(digest(config), simulation._compiled)
    return simulation


def train(path: Path, federation: Federation, settings: dict[str, Any]) -> tuple[dict[str, Any], Simulation]:
    config = configure(settings)
    simulation = simulate(config, federation, path)
    exists = (path / "manifest.json").exists()
    folder = RunFolder.reopen(path) if exists else RunFolder.create(path, config, federation.checksums)
    summary = run(config, folder, simulation)
    folder.close()
    return summary, simulation


def ledger_rows(path: Path) -> list[tuple[str, int, float, float]]:
    with sqlite3.connect(path / "ledger.sqlite") as connection:
        rows = connection.execute("SELECT client, round, sensitivity, sigma FROM releases ORDER BY client, round").fetchall()
    connection.close()
    return rows


# --- The place of the noise. ---


@pytest.mark.usefixtures("quick_compilation")
def test_noise_of_size_zero_changes_no_bit():
    federation = random_federation([20, 15, 12])
    results = []
    for privacy in (no_privacy(), sound(lambda release: 0.0, 2.0)):
        simulation = Simulation(small_setup(privacy), federation, Schedule(rounds=10, participants=2, diagnose_every=5))
        results.append((list(simulation.run()), simulation.state))
    (rows, state), (same_rows, same_state) = results
    assert rows == same_rows
    assert not state.spent.any()
    assert same_state.spent.any()
    for one, other in zip(jax.tree.leaves(state._replace(spent=0)), jax.tree.leaves(same_state._replace(spent=0)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_noise_of_size_zero_in_every_step_changes_no_bit():
    examples = data_of(random_federation([20]), 0)
    state, x0 = some_state()
    plain, off = (
        jax.jit(functools.partial(client_round, small_setup(privacy)))(examples, state, Broadcast(x0), 0, KEY)
        for privacy in (no_privacy(), sound_every_step(lambda release: 0.0, 2.0, 5))
    )
    np.testing.assert_array_equal(plain.message, off.message)
    np.testing.assert_array_equal(plain.state.dual, off.state.dual)
    assert (float(plain.cost), float(off.cost)) == (0.0, 5 / 4)


def on_both(setup: Setup, federation: Federation, state: Any, x0: jax.Array) -> list[ClientResult]:
    """The same round with the data of client 0 and with those of client 1."""
    one = jax.jit(functools.partial(client_round, setup))
    return [one(data_of(federation, client), state, Broadcast(x0), 0, KEY) for client in (0, 1)]


def test_after_the_release_nothing_of_the_data_is_used():
    """Two data sets, noise such that the released solutions agree: state and message must agree, bit for bit."""
    federation = random_federation([20, 20])
    state, x0 = some_state()
    released = 0.2 * jax.random.normal(jax.random.key(1), x0.shape)

    def release_solution(x, release):
        return Released(released, x, jnp.float32(0.0))  # the un-noised solution comes out as the cost

    setup = small_setup(sound(lambda release: 1.0, 1.0)._replace(release_solution=release_solution))
    one, other = on_both(setup, federation, state, x0)
    assert np.abs(one.cost - other.cost).max() > 1e-3
    np.testing.assert_array_equal(one.state.dual, other.state.dual)
    np.testing.assert_array_equal(one.message, other.message)
    np.testing.assert_array_equal(one.local_model, released)
    # and both are what anybody computes from public values
    np.testing.assert_allclose(one.state.dual, state.dual + 0.5 * (x0 - released), atol=1e-6)
    np.testing.assert_allclose(one.state.dual, (state.dual + 0.5 * (x0 - one.message)) / 2, atol=1e-6)


def test_the_paper_s_order_keeps_private_state():
    """The same check on the paper's mechanism: equal messages, and yet the duals tell the data sets apart."""
    federation = random_federation([20, 20])
    state, x0 = some_state()
    sent = 0.2 * jax.random.normal(jax.random.key(1), x0.shape)
    privacy = paper(rho=0.5, clip=1.0, epsilon=10.0, delta=1e-5, batch_size=2, share=0.5, rounds=10)
    setup = small_setup(
        privacy._replace(release_message=lambda message, release: Released(sent, jnp.float32(1.0), jnp.float32(1.0))),
        LocalPlan(5, 2, 0.3),
    )
    one, other = on_both(setup, federation, state, x0)
    np.testing.assert_array_equal(one.message, other.message)
    assert np.abs(one.state.dual - other.state.dual).max() > 1e-3


# --- The size of the noise. ---


def released(setup: Setup, federation: Federation, clients: int, count: int = 2000) -> np.ndarray:
    """Every client's released solution under many keys: [clients, count, *model]."""
    state, x0 = some_state()

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def one(client, key):
        return client_round(setup, data_of(federation, 0)._replace(client=client), state, Broadcast(x0), 0, key).local_model

    return np.asarray(one(jnp.arange(clients), jax.random.split(jax.random.key(11), count)), float)


def check_gaussian(values: np.ndarray, mean: np.ndarray, sigma: float) -> None:
    """Mean by z-test, variance by chi-square (both at six standard errors), and tails by quantiles."""
    noise = (values - mean) / sigma
    count = noise.shape[0]
    assert np.abs(noise.mean(axis=0)).max() < 6 / math.sqrt(count)
    assert abs(noise.var() - 1) < 6 * math.sqrt(2 / noise.size)
    inside = [np.mean(np.abs(noise) < bound) for bound in (0.6745, 1.9600, 2.5758)]
    np.testing.assert_allclose(inside, [0.5, 0.95, 0.99], atol=6 * 0.5 / math.sqrt(noise.size))
    flat = noise.reshape(count, -1)
    correlation = np.corrcoef(flat.T) - np.eye(flat.shape[1])
    assert np.abs(correlation).max() < 6 / math.sqrt(count)


@pytest.mark.parametrize("mode", ["contractive", "linearised", "certified"])
def test_released_solutions_are_the_solver_s_plus_noise_of_the_planned_size(mode):
    """Also per client: a smaller client has more noise."""
    federation = random_federation([20, 8])
    federation = federation._replace(features=federation.features / 10)
    local = LocalPlan(5, 0, 0.3, linearised=mode == "linearised", tolerance=1e-4 if mode == "certified" else 0.0)
    plan = planned(mode=mode, local=local)
    setup = small_setup(plan.privacy, local)
    state, x0 = some_state()
    slope = np.linalg.norm(-state.dual + 0.1 * 2 * x0 / (1 + x0**2) ** 2)
    c = max(abs(1 - 0.3 * 0.45), abs(1 - 0.3 * (0.5 + 0.5 + 0.2)))
    own_solve = jax.jit(lambda examples: solve(setup.problem, local, examples, x0, -state.dual, 0.5, jnp.float32(0.3), KEY)[0])
    for client, found in enumerate(released(setup, federation, 2)):
        size = int(federation.sizes[client])
        sensitivity = {
            "contractive": 0.3 * plan.clip / size * (1 - c**5) / (1 - c),
            "linearised": (1 - (1 - 0.15) ** 5) * plan.clip / (0.5 * size),
            "certified": (plan.clip / size + 2 * max(0.01, c**4 * (plan.clip + slope))) / 0.45,
        }[mode]
        if mode != "certified":  # whose figure on record is without the public slope
            assert plan.sensitivity(0.3, size) == pytest.approx(sensitivity, rel=1e-5)
        solution = np.asarray(own_solve(data_of(federation, client)))
        check_gaussian(found, solution, plan.noise_multiplier * sensitivity)


def test_noise_in_every_step_adds_up_to_the_planned_size():
    """On a flat problem, the independent noises of the gradients, each forgotten at the rate of the proximal term."""
    federation = random_federation([20])
    federation = federation._replace(features=0 * federation.features)
    local = LocalPlan(5, 0, 0.3)
    plan = planned(mode="every-step", local=local)
    assert plan.releases == 5
    setup = small_setup(plan.privacy, local)
    setup = setup._replace(problem=setup.problem._replace(beta=0.0))
    state, x0 = some_state()
    forgotten = (1 - 0.3 * 0.5) ** np.arange(5)
    solution = x0 + 0.3 * forgotten.sum() * state.dual
    sigma = plan.noise_multiplier * plan.clip / 20
    found = released(setup, federation, 1)[0]
    check_gaussian(found, np.asarray(solution), 0.3 * sigma * math.sqrt((forgotten**2).sum()))


def planned(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "epsilon": 2.0,
        "delta": 1e-5,
        "relation": "add-remove",
        "participations": 3,
        "mode": "contractive",
        "clip": softmax(0.5).gradient_bound(1.0),
        "curvature": Curvature(0.5, 0.5, 0.1),
        "local": LocalPlan(5, 0, 0.3),
        "smallest_client": 20,
    }
    return plan_sound(**values | changes)


# --- The cost. ---


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize(
    ("mode", "relation"), [("contractive", "add-remove"), ("contractive", "replace-one"), ("every-step", "replace-one")]
)
def test_the_guarantee_is_what_the_ledger_adds_up_to(tmp_path, digits, mode, relation):
    settings = SOUND | {"privacy.mode": mode, "privacy.relation": relation, "rounds.total": 7, "metrics.diagnose_every": 4}
    summary, simulation = train(tmp_path, digits, settings)
    plan = simulation.plan
    assert plan is not None
    participations = simulation.taken_part()
    releases = 10 if mode == "every-step" else 1
    assert (participations.max(), participations.min(), plan.participations) == (4, 3, 4)
    assert (plan.mode, plan.releases) == (mode, releases)
    z = plan.noise_multiplier
    np.testing.assert_allclose(simulation.state.spent, participations * releases / z**2, rtol=1e-6)

    rows = ledger_rows(tmp_path)
    assert len(rows) == participations.sum() == 35
    mu = dict.fromkeys({row[0] for row in rows}, 0.0)
    for client, _, sensitivity, sigma in rows:
        mu[client] = math.hypot(mu[client], (2 if relation == "replace-one" else 1) * sensitivity / sigma)
    by_number = np.array([mu[f"client-{client}"] for client in range(10)])
    np.testing.assert_allclose(by_number**2, (4 if relation == "replace-one" else 1) * simulation.state.spent, rtol=1e-6)
    # the delta of the largest mu at the epsilon that is printed, by the formula for Gaussian differential privacy
    assert gdp_delta(summary["epsilon"], by_number.max()) == pytest.approx(1e-5, rel=1e-6)

    assert summary["epsilon"] == pytest.approx(epsilon_of(z, 4 * releases, 1e-5, relation), rel=1e-9)
    assert 3.0 * (1 - 1e-6) < summary["epsilon"] <= 3.0 * (1 + 1e-9)
    assert (summary["relation"], summary["mode"], summary["delta"]) == (relation, mode, 1e-5)
    assert relation in summary["guarantee"]
    assert "one example" in summary["guarantee"]
    assert "seeded" in summary["guarantee"]
    assert "protects nobody" in summary["guarantee"]
    # what is on record is the noise that was really added: sensitivity from the settings alone
    size = {f"client-{client}": digits.sizes[client] for client in range(10)}
    for client, _, sensitivity, _ in rows:
        assert sensitivity == pytest.approx(plan.sensitivity(1.0, float(size[client])))


UNEVEN = SOUND | {"rounds.sampling": "uniform", "privacy.participations": 2, "metrics.diagnose_every": 1}


@pytest.mark.usefixtures("quick_compilation")
def test_a_client_whose_budget_is_used_up_stays_away_and_the_run_goes_on(digits):
    """Uniform draws are uneven: some clients reach the cap of 2 long before the end."""
    simulation = simulate(configure(UNEVEN), digits)
    assert simulation.plan
    absences, z = 0, simulation.plan.noise_multiplier
    while not simulation.done:
        before = jax.tree.map(np.array, simulation.state)
        counts = simulation.taken_part()
        row = simulation.advance()[0]
        moved = simulation.taken_part() > counts
        after = simulation.state
        assert row["participants"] == moved.sum()
        np.testing.assert_array_equal((np.asarray(after.clients.dual) != before.clients.dual).any(axis=(1, 2)), moved)
        np.testing.assert_array_equal((np.asarray(after.local_models) != before.local_models).any(axis=(1, 2)), moved)
        np.testing.assert_allclose(after.spent, simulation.taken_part() / z**2, rtol=1e-6)
        assert gdp_delta(3.0, math.sqrt(float(after.spent.max()))) <= 1e-5 * (1 + 1e-4)
        if not moved.any():
            np.testing.assert_array_equal(after.server.x0, before.server.x0)
        absences += 5 - int(moved.sum())
    assert absences == 12 * 5 - 10 * 2
    assert simulation.taken_part().tolist() == [2] * 10


@pytest.mark.usefixtures("quick_compilation")
def test_the_ledger_refuses_what_the_roster_would_allow(tmp_path, digits):
    """Without the cap of the roster, the budget alone keeps clients out."""
    config = configure(UNEVEN)
    capped = simulate(config, digits)
    assert capped.plan
    ledger = SimulatedLedger(tmp_path / "ledger.sqlite", digest(config), capped.plan, capped.setup, digits)
    simulation = Simulation(capped.setup, digits, capped.schedule._replace(cap=0), capped.plan, ledger=ledger)
    simulation._compiled = capped._compiled
    assert simulation.plan
    folder = RunFolder.create(tmp_path, config, digits.checksums)
    summary = run(config, folder, simulation)
    folder.close()
    assert simulation.taken_part().tolist() == [2] * 10
    assert summary["refused_participations"] == 12 * 5 - 20
    assert (summary["rounds"], len(ledger_rows(tmp_path))) == (12, 20)
    assert summary["epsilon"] <= 3.0 * (1 + 1e-9)
    np.testing.assert_allclose(simulation.state.spent, 2 / simulation.plan.noise_multiplier**2, rtol=1e-6)
    list(capped.run())
    np.testing.assert_array_equal(simulation.model, capped.model)


SHORT = SOUND | {"rounds.total": 8, "metrics.diagnose_every": 4, "algorithm.server_rule": "dual-memory"}


@pytest.mark.usefixtures("quick_compilation")
def test_a_run_that_is_repeated_after_a_crash_neither_spends_twice_nor_forgets(tmp_path, digits):
    summary, _ = train(tmp_path, digits, SHORT)
    rows, model = ledger_rows(tmp_path), read_models(tmp_path)["model"]
    assert len(rows) == 40
    # as if the process had been killed before its first checkpoint, and after all releases were on record
    for name in ("checkpoint.safetensors", "summary.json", "model.safetensors"):
        (tmp_path / name).unlink()
    again, simulation = train(tmp_path, digits, SHORT)
    assert ledger_rows(tmp_path) == rows
    np.testing.assert_array_equal(read_models(tmp_path)["model"], model)
    assert again["epsilon"] == summary["epsilon"]
    assert simulation.taken_part().sum() == 40
    # the server's table of duals, made of messages alone, is what the clients hold
    assert np.abs(simulation.state.clients.dual).max() > 0.01
    np.testing.assert_allclose(simulation.state.server.memory, simulation.state.clients.dual, atol=1e-4)
    assert again["refused_participations"] == 0


@pytest.mark.usefixtures("quick_compilation")
def test_a_resumed_run_keeps_what_was_spent(tmp_path, digits):
    """Killed between two chunks: what the first process recorded and what the second adds make one whole run."""
    whole, _ = train(tmp_path / "whole", digits, SHORT)
    path = tmp_path / "halves"

    class Killed(Exception):
        pass

    def kill(rows: list[dict[str, Any]]) -> None:
        if rows[-1]["round"] == 8:
            raise Killed

    config = configure(SHORT)
    folder = RunFolder.create(path, config, digits.checksums)
    with pytest.raises(Killed):
        run(config, folder, simulate(config, digits, path), on_rows=kill)
    folder.close()
    assert len(ledger_rows(path)) == 40
    again, simulation = train(path, digits, SHORT)
    assert [row[:2] for row in ledger_rows(path)] == [row[:2] for row in ledger_rows(tmp_path / "whole")]
    assert again["epsilon"] == whole["epsilon"]
    np.testing.assert_array_equal(read_models(path)["model"], read_models(tmp_path / "whole")["model"])
    assert simulation.plan
    np.testing.assert_allclose(simulation.state.spent, 4 / simulation.plan.noise_multiplier**2, rtol=1e-6)


# --- The paper's mechanism. ---


@pytest.mark.parametrize(("rho", "eta", "steps"), [(10.0, 0.04, 3), (2.0, 1.0, 4)])
def test_the_paper_s_noise_is_that_of_its_theorems(rho, eta, steps):
    federation = random_federation([60])
    privacy = paper(rho=rho, clip=0.7, epsilon=5.0, delta=1e-4, batch_size=3, share=0.3, rounds=50)
    local = LocalPlan(steps, 3, eta, batch_clip=0.7)
    setup = Setup(Problem(softmax(), penalties.none()), fedpdm(rho=rho), local, privacy)
    state, x0 = some_state()
    examples = data_of(federation, 0)

    @jax.jit
    @jax.vmap
    def noise_and_cost(key):
        noised = client_round(setup, examples, state, Broadcast(x0), 0, key)
        plain = client_round(setup._replace(privacy=no_privacy()), examples, state, Broadcast(x0), 0, key)
        same_state = jnp.all(noised.state.dual == plain.state.dual)
        return noised.message - plain.message, noised.cost, same_state

    noise, cost, same_state = noise_and_cost(jax.random.split(KEY, 1500))
    per_round = paper_round_epsilon(5.0, steps, 3, 60, 3, 10, 50)
    sensitivity = paper_sensitivity(rho, eta, steps, 0.7)
    sigma = paper_sigma(sensitivity, per_round, 1e-4)
    check_gaussian(np.asarray(noise, float), np.zeros(x0.shape), sigma)
    np.testing.assert_allclose(cost, (sensitivity / sigma) ** 2, rtol=1e-4)
    assert np.all(same_state)  # its noise does not reach the dual: that is defect 2


def test_the_paper_s_noise_follows_the_steps_really_taken():
    """With a tolerance the number of steps depends on the data, and so does the noise: defect 3."""
    federation = random_federation([60])
    privacy = paper(rho=10.0, clip=1.0, epsilon=5.0, delta=1e-4, batch_size=3, share=0.3, rounds=50)
    state, x0 = some_state()
    for tolerance, cap in [(1e9, 6), (1e-9, 6)]:
        setup = Setup(
            Problem(softmax(), penalties.none()), fedpdm(rho=10.0), LocalPlan(cap, 3, 0.04, tolerance=tolerance), privacy
        )
        result = jax.jit(functools.partial(client_round, setup))(data_of(federation, 0), state, Broadcast(x0), 0, KEY)
        taken = int(result.info.steps)
        assert taken == (1 if tolerance > 1 else 6)
        per_round = paper_round_epsilon(5.0, taken, 3, 60, 3, 10, 50)
        assert float(result.cost) == pytest.approx(per_round**2 / (2 * math.log(1.25 / 1e-4)), rel=1e-4)


@pytest.mark.usefixtures("quick_compilation")
def test_the_paper_s_guarantee_is_called_nominal(tmp_path):
    config = configure(PAPER)
    federation = build_federation(config, progress=False)
    summary, simulation = train(tmp_path, federation, PAPER)
    assert summary["epsilon"] is None
    assert summary["relation"] == "add-remove"  # of the nominal and the face-value figure
    assert summary["epsilon_nominal"] == 10.0
    assert "Nothing is guaranteed" in summary["guarantee"]
    assert "nominal" in summary["guarantee"]
    assert not (tmp_path / "ledger.sqlite").exists()
    worst = int(np.argmax(simulation.state.spent))
    size, times = int(federation.sizes[worst]), int(simulation.taken_part()[worst])
    per_round = paper_round_epsilon(10.0, 10, 4, size, 5, 10, 12)
    sensitivity = paper_sensitivity(1.0, 0.05, 10, 1.0)
    sigma = paper_sigma(sensitivity, per_round, 1e-5)
    assert float(simulation.state.spent[worst]) == pytest.approx(times * (sensitivity / sigma) ** 2, rel=1e-4)
    face_value = sampled_epsilon(sigma / sensitivity, 10 * 4 / size, times, 1e-5, "add-remove")
    assert summary["epsilon_face_value"] == pytest.approx(face_value, rel=1e-3)
    assert summary["epsilon_face_value"] > 2 * summary["epsilon_nominal"]


# --- Refusals. ---


@pytest.mark.parametrize(
    ("batch_size", "tolerance", "mode"),
    [(0, 0.0, "contractive"), (4, 0.0, "one-pass"), (0, 0.01, "certified")],
)
def test_the_mode_follows_the_local_settings(batch_size, tolerance, mode):
    local = LocalPlan(5, batch_size, 0.1, tolerance=tolerance)
    assert choose_mode(local) == choose_mode(local, mode) == mode


@pytest.mark.parametrize("mode", ["linearised", "every-step", "batch-clipped"])
def test_other_modes_are_there_to_be_asked_for(mode):
    assert choose_mode(LocalPlan(5, 0, 0.1), mode) == mode


def test_batch_clipping_takes_any_batches():
    assert choose_mode(LocalPlan(5, 3, 0.1), "batch-clipped") == "batch-clipped"


@pytest.mark.parametrize(
    ("batch_size", "tolerance", "mode", "words"),
    [
        (4, 0.0, "contractive", r"does not fit local\.batch_size=4.*one-pass.*need local\.batch_size=0"),
        (4, 0.0, "linearised", r"does not fit local\.batch_size=4"),
        (4, 0.0, "every-step", r"does not fit local\.batch_size=4"),
        (4, 0.0, "certified", r"certified needs a local\.tolerance"),
        (0, 0.0, "certified", r"does not fit.*certified needs a local\.tolerance"),
        (0, 0.0, "one-pass", r"does not fit local\.batch_size=0.*'contractive'"),
        (0, 0.01, "contractive", r"does not fit.*local\.tolerance=0\.01.*contractive and one-pass need none"),
        (0, 0.01, "linearised", r"number of steps depend on the data.*local\.tolerance=0\.0"),
        (0, 0.01, "every-step", r"number of steps depend on the data"),
        (0, 0.01, "batch-clipped", r"number of steps depend on the data"),
        (4, 0.01, "auto", r"number of steps depend on the data.*'one-pass'.*local\.tolerance=0\.0"),
        (4, 0.01, "one-pass", r"number of steps depend on the data"),
    ],
)
def test_modes_that_do_not_fit_are_refused(batch_size, tolerance, mode, words):
    with pytest.raises(ConfigError, match=words):
        choose_mode(LocalPlan(5, batch_size, 0.1, tolerance=tolerance), mode)


@pytest.mark.parametrize("mode", ["contractive", "one-pass", "certified"])
def test_an_expanding_step_is_refused_in_every_mode_that_needs_contraction(mode):
    local = LocalPlan(5, 2 if mode == "one-pass" else 0, 2.0, tolerance=0.01 if mode == "certified" else 0.0)
    with pytest.raises(ConfigError, match=r"local\.step_size=2 makes local steps expand.*use at most 1\.666"):
        planned(mode=mode, local=local)
    with pytest.raises(ConfigError, match=r"raise algorithm\.rho or lower problem\.beta"):
        planned(mode=mode, local=local, curvature=Curvature(0.5, 0.5, 1.1))


def test_modes_that_need_no_curvature_allow_any_step():
    for mode in ("linearised", "every-step"):
        assert planned(mode=mode, local=LocalPlan(5, 0, 9.0), curvature=Curvature(0.0, 0.5, 3.0)).mode == mode
    with pytest.raises(ConfigError, match="expand"):
        planned(mode="batch-clipped", local=LocalPlan(5, 0, 9.0))
    assert planned(mode="batch-clipped", local=LocalPlan(5, 0, 2.8)).mode == "batch-clipped"


def test_more_than_one_pass_is_refused():
    assert planned(mode="one-pass", local=LocalPlan(6, 3, 0.3)).mode == "one-pass"
    with pytest.raises(ConfigError, match=r"local\.steps=7 with local\.batch_size=3.*20 examples: use at most 6 steps"):
        planned(mode="one-pass", local=LocalPlan(7, 3, 0.3))


def test_certified_needs_strong_convexity():
    with pytest.raises(ConfigError, match=r"certified' needs a proximal weight 0\.5 > problem\.beta/2=0\.5"):
        planned(mode="certified", local=LocalPlan(5, 0, 0.3, tolerance=0.01), curvature=Curvature(0.5, 0.5, 1.0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy.mechanism": "none"}, r"privacy\.epsilon=3\.0 has no effect"),
        ({"privacy.epsilon": 0.0}, r"privacy\.epsilon"),
        ({"privacy.delta": 1.0}, r"privacy\.delta"),
        ({"privacy.relation": "swap"}, r"privacy\.relation"),
        ({"local.step_size": 3.0}, r"local steps expand"),
        ({"problem.beta": 9.0}, r"raise algorithm\.rho or lower problem\.beta"),
        ({"local.batch_size": 30, "local.steps": 10}, r"goes over the data more than once"),
        ({"local.tolerance": 0.01, "privacy.mode": "contractive"}, r"does not fit"),
        ({"problem.penalty_by": "subgradient", "problem.gamma": 0.01}, r"steps that jump at zero"),
        ({"problem.penalty_by": "subgradient", "problem.penalty": "l0"}, r"needs a slope everywhere"),
        ({"privacy.mechanism": "paper"}, r"batch_size=0"),
        ({"privacy.mechanism": "paper", "local.batch_size": 40}, r"at most \d steps"),
    ],
)
def test_settings_that_carry_no_guarantee_are_refused(digits, changes, words):
    with pytest.raises(ConfigError, match=words):
        build_simulation(configure(SOUND | changes), digits)


def test_a_mechanism_needs_a_budget():
    with pytest.raises(ConfigError, match=r'mechanism="sound" needs a budget: set privacy\.epsilon'):
        configure(DIGITS | {"privacy.mechanism": "sound"})


# --- The conditions of the bounds are enforced. ---


def test_features_are_cut_to_the_radius(digits):
    plain = build_federation(configure(DIGITS), progress=False)
    assert np.linalg.norm(plain.features, axis=2).max() > 1.5
    assert np.linalg.norm(digits.features.astype(float), axis=2).max() <= 1 + 1e-6
    halved = build_federation(configure(SOUND | {"data.radius": 0.5}), progress=False)
    assert np.linalg.norm(halved.features.astype(float), axis=2).max() <= 0.5 * (1 + 1e-6)


def test_features_beyond_the_radius_are_refused(digits):
    config = configure(SOUND)
    features = digits.features.copy()
    features[3, 2] *= 1.001 / np.linalg.norm(features[3, 2])
    with pytest.raises(ConfigError, match=r"norm 1\.001, above the radius 1 .*clip_norms"):
        build_simulation(config, digits._replace(features=features))
    features[3, 2, 0] = np.nan
    with pytest.raises(ConfigError, match="above the radius"):
        build_simulation(config, digits._replace(features=features))
    with pytest.raises(ConfigError, match=r"above the radius 0\.5"):
        build_simulation(configure(SOUND | {"data.radius": 0.5}), digits)


@pytest.mark.parametrize(("loss", "own"), [("softmax", 2**0.5), ("logistic", 1.0)])
@pytest.mark.parametrize("radius", [1.0, 0.5])
@pytest.mark.parametrize("asked", [None, 0.2, 50.0])
def test_the_clip_that_is_counted_is_the_clip_that_is_done(digits, loss, own, radius, asked):
    """Examples that are as wrong as can be have a gradient of norm C, and never more."""
    settings = SOUND | {"problem.loss": loss, "data.radius": radius, "privacy.clip": asked}
    setup, plan = build_setup(configure(settings), digits)
    assert plan
    assert plan.clip == pytest.approx({None: own * radius / 2, 0.2: 0.2, 50.0: own * radius}[asked])
    a = np.zeros((1, 65), np.float32)
    a[0, 0] = radius
    model = np.zeros((10, 65), np.float32)
    model[:2, 0] = -300.0, 300.0
    norm = float(jnp.linalg.norm(setup.problem.loss.gradient(jnp.asarray(model), a, jnp.array([0]), jnp.ones(1))))
    assert norm == pytest.approx(plan.clip, rel=1e-5)
