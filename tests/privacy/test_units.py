"""A person as the unit: removing all rows of one moves the solution by at most the bound, in every mode.

Both runs go through the real local solver, with the same key, start, dual and settings; in one of them the person's slots are
empty (rows of zeros, whose gradient is zero). The same search must find a breach where rows are counted one by one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from fedpdm.algorithms.base import Broadcast
from fedpdm.algorithms.local import Examples, LocalPlan, solve
from fedpdm.config import load_config
from fedpdm.data.datasets import Dataset
from fedpdm.data.federation import make_federation
from fedpdm.data.partition import by_column
from fedpdm.data.prepare import build_federation
from fedpdm.data.schema import Number, Schema
from fedpdm.data.weights import unit_shares
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.errors import ConfigError
from fedpdm.privacy import sensitivity as bounds
from fedpdm.privacy.accounting import noise_multiplier_for
from fedpdm.privacy.sensitivity import Curvature
from fedpdm.problem import Problem, logistic, penalties, softmax
from fedpdm.problem.objective import local_gradients, local_objectives
from fedpdm.rounds import solve_locally

ROWS, PERSONS, OWN, FEATURES, CLASSES = 8, 4, 5, 2, 3  # person 0 has OWN of the rows, the others one each
QUICKLY = {"xla_backend_optimization_level": 0}  # compiling takes longer than running
UNITS = np.maximum(np.arange(ROWS) - OWN + 1, 0)
WEIGHTS = unit_shares(np.bincount(UNITS))[UNITS]
CLIP = 0.5


class Mode(NamedTuple):
    """A way of solving, and the bound on what one unit can do: `bound(C, curvature, step size, slots)`."""

    local: LocalPlan
    bound: Callable[[float, Curvature, float, float], Array | float]
    persons_count: bool = True  # whether the bound is divided by the number of units


STEP, WEIGHT = 0.9, 0.3
FULL, BATCHES = LocalPlan(4, 0, STEP), LocalPlan(4, 2, STEP)
TAU = 1e-3
MODES = {
    "linearised": Mode(FULL._replace(linearised=True), lambda c, k, eta, n: bounds.linearised(c, k.weight, eta, 4, n)),
    "contractive": Mode(FULL, lambda c, k, eta, n: bounds.contractive(c, k, eta, 4, n)),
    "one-pass": Mode(BATCHES, lambda c, k, eta, n: bounds.one_pass(c, eta, 2), persons_count=False),
    "certified": Mode(LocalPlan(200, 0, STEP, tolerance=TAU**2), lambda c, k, eta, n: bounds.certified(c, k, TAU, n)),
    "every-step": Mode(LocalPlan(1, 0, STEP), lambda c, k, eta, n: eta * bounds.every_step(c, n)),
    "batch-clipped": Mode(
        BATCHES._replace(batch_clip=0.2), lambda c, k, eta, n: bounds.batch_clipped(0.2, k, eta, 4), persons_count=False
    ),
}
LOSSES = {"softmax": softmax(CLIP), "logistic": logistic(CLIP)}


def worst_ratio(mode: Mode, loss_name: str, by_person: bool, count: int = 3000) -> float:
    """The largest move of the solution over many pairs, in units of the bound."""
    loss = LOSSES[loss_name]
    curvature = Curvature(WEIGHT, loss.smoothness(1.0))
    slots = PERSONS if by_person else ROWS
    bound = mode.bound(loss.gradient_bound(1.0), curvature, STEP, float(slots))
    counted = (jnp.asarray(WEIGHTS)[None], jnp.array([PERSONS])) if by_person else ()
    own = jnp.asarray(UNITS == 0)[:, None]
    problem = Problem(loss, penalties.none())

    def ratio(features: Array, labels: Array, x0: Array, dual: Array, key: Array) -> Array:
        def solution(rows: Array) -> Array:
            examples = Examples(rows[None], labels[None], jnp.array([ROWS]), jnp.int32(0), *counted)
            return solve(problem, mode.local, examples, x0, -dual, WEIGHT, jnp.float64(STEP), jax.random.wrap_key_data(key))[0]

        return jnp.linalg.norm(solution(features) - solution(jnp.where(own, 0.0, features))) / bound

    with jax.enable_x64(True):
        compiled = jax.jit(jax.vmap(ratio), compiler_options=QUICKLY)
        return float(jnp.max(compiled(*pairs(count))))


def pairs(count: int) -> tuple[np.ndarray, ...]:
    """Random data; in half of it the person's rows are alike, and the start gets all of them as wrong as can be."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count, ROWS, FEATURES))
    labels = rng.integers(0, CLASSES, (count, ROWS))
    alike = rng.random((count, 1)) < 0.5
    labels = np.where(alike & (UNITS == 0), labels[:, :1], labels)
    features = np.where((alike & (UNITS == 0))[..., None], features[:, :1], features)
    features /= np.linalg.norm(features, axis=2, keepdims=True)
    wrong = (np.eye(CLASSES)[(labels[:, 0] + 1) % CLASSES] - np.eye(CLASSES)[labels[:, 0]])[:, :, None] * features[:, :1]
    x0 = np.where(rng.random((count, 1, 1)) < 0.5, 30 * wrong, rng.normal(size=(count, CLASSES, FEATURES)))
    dual = rng.normal(size=x0.shape) * (rng.random((count, 1, 1)) < 0.5)
    return features, labels, x0, dual, rng.integers(0, 2**32, (count, 2), np.uint32)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODES)
def test_a_person_s_rows_together_stay_within_the_bound_of_one(name, loss):
    assert worst_ratio(MODES[name], loss, by_person=True) <= 1 + 1e-6


@pytest.mark.parametrize("name", [name for name in MODES if name != "batch-clipped"])  # its bound covers all rows at once
def test_counting_rows_one_by_one_breaks_the_bound(name):
    assert worst_ratio(MODES[name], "softmax", by_person=False) > 1.5


def persons_dataset(units: list[int], clients: list[int]) -> Dataset:
    rng = np.random.default_rng(0)
    rows = len(units)
    features = rng.normal(size=(rows, 3)).astype(np.float32)
    features /= 2 * np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.arange(rows, dtype=np.int32) % 2
    names = tuple(f"c{k}" for k in range(max(clients) + 1))
    places, numbers = np.array(clients, np.int32), np.array(units)
    return Dataset("t", features, labels, features, labels, ("0", "1"), ("a", "b", "c"), {}, places, names, numbers)


def test_objective_and_gradient_are_means_over_persons():
    data = persons_dataset([0, 0, 0, 1, 2, 2], [0] * 6)
    federation = make_federation(data, [np.arange(6)])
    assert federation.persons.tolist() == federation.slots.tolist() == [3]
    problem, x = Problem(softmax(), penalties.none()), jnp.ones((2, 3)) * jnp.arange(3)
    arrays = tuple(jnp.asarray(a) for a in (federation.features, federation.labels, federation.sizes))
    persons = jnp.asarray(federation.weights), jnp.asarray(federation.persons)
    values = np.asarray(problem.loss.values(x, arrays[0][0], arrays[1][0]))
    expected = np.mean([values[:3].mean(), values[3], values[4:].mean()])
    np.testing.assert_allclose(local_objectives(problem, x, *arrays, *persons)[0], expected, rtol=1e-6)
    gradient = jax.grad(lambda x: local_objectives(problem, x, *arrays, *persons)[0])(x)
    np.testing.assert_allclose(local_gradients(problem, x[None], *arrays, *persons)[0], gradient, atol=1e-6)


def test_weights_of_a_person_never_add_up_to_more_than_one():
    rows = np.arange(1, 2000)
    assert (unit_shares(rows).astype(np.float64) * rows <= 1).all()


SETTINGS = ["data.label=ill", "data.unit_column=patient", "privacy.mechanism=sound", "privacy.epsilon=1.0"]
SCHEMA = """label = "ill"
classes = ["no", "yes"]
client = "clinic"
unit_column = "patient"
[columns.age]
kind = "number"
low = 0
high = 100
"""


@pytest.fixture
def table(tmp_path):
    """Patients 0 to 59 with one to five rows; each fifth one is at two clinics; two rows name nobody."""
    rng, lines = np.random.default_rng(0), ["age,clinic,patient,ill"]
    for person in range(60):
        for visit in range(1 + person % 5):
            clinic = "a" if person % 2 ^ (visit == 1 and person % 5 == 4) else "b"
            lines.append(f"{rng.integers(20, 90)},{clinic},p{person},{'yes' if rng.random() < 0.5 else 'no'}")
    lines += ["50,a,,no", "51,a,,yes"]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "t.schema.toml").write_text(SCHEMA)
    files = [f"data.name={tmp_path / 't.csv'}", f"data.schema_file={tmp_path / 't.schema.toml'}", "data.partition=column"]
    return [*files, *SETTINGS, "rounds.total=2", "local.steps=2"]


def test_the_test_part_keeps_persons_apart(table):
    from fedpdm.data.custom import load_custom

    data = load_custom(load_config("private-table", table).data, private=True).dataset
    everyone = load_custom(load_config("private-table", [*table, "data.test_share=0.0001"]).data, private=True).dataset
    trained = set(data.units.tolist())
    assert len(trained) < len(set(everyone.units.tolist()))
    lengths = dict(zip(*np.unique(everyone.units, return_counts=True), strict=True))
    kept = dict(zip(*np.unique(data.units, return_counts=True), strict=True))
    shared = [unit for unit in kept if unit in lengths]
    assert all(kept[unit] == lengths[unit] for unit in shared)  # nobody has rows on both sides


def test_the_guarantee_is_for_all_rows_of_one_patient_and_rows_elsewhere_cost_noise(table):
    with pytest.raises(ConfigError, match="One patient has rows at 2 clients"):
        build(table)
    plan = build([*table, "privacy.clients_per_unit=2", "data.standardise=false", "data.scaling=bounded"]).plan
    assert plan is not None
    assert "for all rows of one patient at up to 2 clients, under adding or removing them" in plan.sentence()
    times = plan.participations
    assert plan.noise_multiplier == noise_multiplier_for(1.0, 1e-5, 2 * times, "add-remove")
    assert plan.cost_multiplier() == pytest.approx(plan.noise_multiplier / 2**0.5)


def test_a_limit_of_clients_without_persons_is_refused(table):
    without = [setting for setting in table if "unit_column" not in setting and "schema_file" not in setting]
    schema = next(s for s in table if "schema_file" in s).partition("=")[2]
    text = SCHEMA.replace('unit_column = "patient"\n', "")
    Path(schema).write_text(text)
    with pytest.raises(ConfigError, match="no column names persons"):
        build([*without, f"data.schema_file={schema}", "privacy.clients_per_unit=2"])


def build(settings):
    config = load_config("private-table", settings)
    return build_simulation(config, build_federation(config, progress=False))


def move_of_a_cohort(clients_of_person: list[int], by_rows: bool = False) -> float:
    """How far removing a person moves the sum of a cohort's contributions, over the bound of one member's."""
    rows = [(client, 10 * client + person) for client in range(4) for person in range(5)]
    rows += [(client, 99) for client in clients_of_person for _ in range(3)]
    clients, units = ([row[place] for row in rows] for place in (0, 1))
    data = persons_dataset(units, clients)
    own = np.array(units) == 99
    alike = np.where(own[:, None], np.eye(3, dtype=np.float32)[0], data.features)
    data = data._replace(features=alike, labels=np.where(own, 0, data.labels).astype(np.int32))
    names = {"label": "y", "classes": ["0", "1"], "unit_column": "p", "bias": False}
    schema = Schema(**names, columns={name: Number(low=0, high=1) for name in "abc"})
    federation = make_federation(data, by_column(data.clients))._replace(schema=schema)
    cohort = ["privacy.trust=cohorts", "cohorts.colluding=0", "cohorts.dropouts=0", "privacy.mode=linearised"]
    most = [f"privacy.clients_per_unit={len(clients_of_person)}", "privacy.mechanism=sound", "privacy.epsilon=1.0"]
    settings = ["data.name=own", "data.clients=4", "rounds.participants=4", "local.batch_size=0", "rounds.all_first=false"]
    simulation = build_simulation(load_config("plain", [*settings, *cohort, *most]), federation)
    setup, plan, device = simulation.setup, simulation.plan, simulation.window.data
    assert setup.privacy.sums is not None
    assert plan is not None
    x0 = jnp.array([[-30.0, 0, 0], [30.0, 0, 0]])  # as wrong about the person as can be
    gone = np.zeros(federation.labels.shape, bool)
    for client in clients_of_person:
        gone[client, 5:8] = True
    without = device._replace(features=jnp.where(gone[..., None], 0.0, device.features))
    state, total = setup.algorithm.init_client(x0), jnp.zeros_like(x0)
    for client in range(4):
        solved = []
        for held in (device, without):
            examples = held.examples(jnp.int32(client))
            solved.append(solve_locally(setup, examples, state, Broadcast(x0), 0, jax.random.key(0), None).x)
        counted = examples.sizes[client] if by_rows else examples.slots
        total = total + counted / setup.privacy.sums.mean_examples * (solved[0] - solved[1])
    return float(jnp.linalg.norm(total)) / plan.sensitivity(setup.local.step_size, 6.0)


def test_a_person_moves_the_sum_of_a_cohort_by_the_bound_of_one_for_each_client_and_counting_rows_breaks_it():
    assert 0.9 < move_of_a_cohort([1]) <= 1 + 2e-4  # float32
    assert 2**0.5 < move_of_a_cohort([0, 1]) <= 2 + 4e-4  # in one sum moves add up: q clients count as q^2 releases
    assert move_of_a_cohort([1], by_rows=True) > 1.2


def test_persons_at_several_members_of_a_cohort_cost_noise_in_proportion(table):
    cohort = ["privacy.trust=cohorts", "cohorts.colluding=0", "cohorts.dropouts=0", "data.standardise=false"]
    plan = build([*table, *cohort, "data.scaling=bounded", "privacy.clients_per_unit=2"]).plan
    assert plan is not None
    assert plan.noise_multiplier == noise_multiplier_for(1.0, 1e-5, 4 * plan.participations, "add-remove")
    assert plan.cost_multiplier() == pytest.approx(plan.noise_multiplier / 2)
