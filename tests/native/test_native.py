"""The kernels of machine code agree with the JAX functions that they replace."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_federation
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpdm.algorithms.local import Examples, LocalPlan, solve
from fedpdm.choices import ALGORITHMS, LOSSES
from fedpdm.config import load_config
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.native import SWITCH, bridge, gradient, linear, selection
from fedpdm.native.draws import DRAW_BITS, draw, order_of
from fedpdm.problem import Problem, penalties
from fedpdm.problem.losses import restricted

SIZES = [20, 7, 13, 1]


def solve_all(
    problem: Problem,
    plan: LocalPlan,
    weight: float = 0.5,
    clients: tuple[int, ...] = (2, 0, 3, 1),
    huge: float = 1.0,
    classes: int = 3,
) -> tuple:
    """Solve for these clients; the first row of client 0 is multiplied by `huge`."""
    data = random_federation(SIZES, classes=classes)
    data.features[0, 0] *= huge
    features, labels, sizes = (jnp.asarray(a) for a in (data.features, data.labels, data.sizes))
    shape = (classes, features.shape[2])
    x0 = 0.3 * jax.random.normal(jax.random.key(1), shape)
    terms = 0.1 * jax.random.normal(jax.random.key(2), (len(clients), *shape))
    keys = jax.random.split(jax.random.key(3), len(clients))

    def one(client, term, key):
        return solve(problem, plan, Examples(features, labels, sizes, client), x0, term, weight, jnp.float32(0.2), key)

    x, info = jax.jit(jax.vmap(one))(jnp.array(clients), terms, keys)
    return np.asarray(x), np.asarray(info.steps)


def both_ways(monkeypatch, *args, **kwargs) -> tuple:
    native = solve_all(*args, **kwargs)
    monkeypatch.setenv(SWITCH, "0")
    return native, solve_all(*args, **kwargs)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("clip", [1.0, 0.3])
@pytest.mark.parametrize("plan", [{}, {"tolerance": 0.3}, {"batch_clip": 0.2}, {"batch_clip": 0.2, "tolerance": 0.3}])
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize(("classes", "batch"), [(3, 4), (2, 4), (2, 6)])
def test_the_kernel_takes_the_steps_of_the_solver(monkeypatch, loss, clip, plan, beta, classes, batch) -> None:
    """Small batches from 20, 7, 13 and 1 rows: the order is used several times."""
    problem = Problem(LOSSES[loss].factory()(clip), penalties.l1(0.1), beta)
    native, plain = both_ways(monkeypatch, problem, LocalPlan(9, batch, 0.2, **plan), classes=classes)
    np.testing.assert_allclose(native[0], plain[0], atol=2e-6)
    np.testing.assert_array_equal(native[1], plain[1])


@pytest.mark.parametrize("plan", [{}, {"batch_clip": 0.2, "tolerance": 0.3}])
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("classes", [2, 3])
def test_the_kernel_takes_subgradients_of_an_l1_penalty(monkeypatch, plan, scale, classes) -> None:
    penalty = penalties.scaled(penalties.l1(0.4), scale)
    problem = Problem(LOSSES["logistic"].factory()(1.0), penalty, 0.5, penalty_by="subgradient")
    native, plain = both_ways(monkeypatch, problem, LocalPlan(9, 4, 0.2, **plan), classes=classes)
    np.testing.assert_allclose(native[0], plain[0], atol=2e-6)
    np.testing.assert_array_equal(native[1], plain[1])
    without, _ = solve_all(problem._replace(penalty_by="prox"), LocalPlan(9, 4, 0.2, **plan), classes=classes)
    assert np.abs(without - plain[0]).max() > 0.01, "the penalty matters here"


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_clipped_batch_whose_gradient_overflows_counts_as_zero(monkeypatch, loss, classes) -> None:
    """Its squares are infinite: without the rule the model would become NaN."""
    problem, plan = Problem(LOSSES[loss].factory()(1.0), penalties.l1(0.1), 0.5), LocalPlan(9, 4, 0.2, batch_clip=0.2)
    native, plain = both_ways(monkeypatch, problem, plan, huge=1e25, classes=classes)
    assert np.isfinite(plain[0]).all()
    np.testing.assert_allclose(native[0], plain[0], atol=2e-6)


@pytest.mark.parametrize("plan", [LocalPlan(5, 0, 0.2), LocalPlan(5, 4, 0.2, linearised=True), LocalPlan(5, 4, 0.2)])
@pytest.mark.parametrize("change", ["none", "subgradient", "support", "noise", "double"])
def test_the_kernel_serves_fixed_small_batches_alone(plan, change) -> None:
    """The parts behind the proofs (whole batches, noise in steps, supports, float64) never run in our machine code."""
    by = "subgradient" if change == "subgradient" else "prox"
    penalty = penalties.elastic_net(0.1) if change == "subgradient" else penalties.l1(0.1)  # of L1 it knows the subgradient
    problem = Problem(LOSSES["softmax"].factory()(0.5), penalty, penalty_by=by)
    data = random_federation(SIZES)
    support = jnp.ones((3, 5), bool) if change == "support" else None
    if support is not None:
        problem = problem._replace(loss=restricted(problem.loss, jnp.zeros((3, 5)), support, 1.0))
    noise = (lambda step, shape: jnp.zeros(shape)) if change == "noise" else None
    with jax.enable_x64(change == "double"):
        x0 = jnp.zeros((3, 5), jnp.float64 if change == "double" else jnp.float32)
        examples = Examples(*(jnp.asarray(a) for a in (data.features, data.labels, data.sizes)), jnp.int32(0))
        text = str(
            jax.make_jaxpr(lambda key: solve(problem, plan, examples, x0, 0.0, 0.5, jnp.float32(0.2), key, noise, support))(
                jax.random.key(0)
            )
        )
    served = change == "none" and plan.batch_size > 0 and not plan.linearised
    assert ("fedpdm_linear_steps" in text) == served


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_runs_with_and_without_the_kernel_agree(monkeypatch, algorithm, tmp_path: Path) -> None:
    settings = ["data.clients=6", "rounds.total=5", "rounds.participants=3", "local.steps=6", "local.batch_size=8"]
    config = load_config("plain", [*settings, f"algorithm.name={algorithm}", "problem.beta=0.1"])
    federation = random_federation([20, 7, 13, 9, 30, 8])
    models = []
    for switch in ("1", "0"):
        monkeypatch.setenv(SWITCH, switch)
        simulation = build_simulation(config, federation)
        list(simulation.run())
        models.append(simulation.model)
    assert np.abs(models[0]).max() > 0.01
    np.testing.assert_allclose(models[0], models[1], atol=2e-6)


@given(arrays(np.int64, st.integers(1, 40), elements=st.sampled_from([*range(99), 2**DRAW_BITS // 3, 2**DRAW_BITS - 1])))
def test_the_order_is_the_stable_sort(draws) -> None:
    order, starts = np.empty(len(draws), np.int64), np.empty(len(draws) + 1, np.int64)
    order_of(draws, order, starts)
    np.testing.assert_array_equal(order, np.argsort(draws, kind="stable"))


@settings(deadline=None)  # the first call compiles
@given(st.integers(0, 2**32 - 1))
def test_the_draws_are_those_of_jax(seed) -> None:
    key = jax.random.fold_in(jax.random.key(seed), 7)
    draws = np.empty(33, np.int64)
    draw(np.asarray(jax.random.key_data(key)), draws)
    np.testing.assert_array_equal(draws / 2**DRAW_BITS, jax.random.uniform(key, (50,))[:33])


def test_the_name_of_the_code_changes_with_every_file_of_the_room(tmp_path: Path) -> None:
    """Numba's cache looks at one file, and at the values that a kernel captures: this name is one of them."""
    for path in Path(bridge.__file__).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert bridge.digest_of(tmp_path) == bridge.SOURCES
    names = {bridge.SOURCES}
    for path in sorted(tmp_path.glob("*.py")):
        path.write_text(path.read_text() + "\n")
        names.add(bridge.digest_of(tmp_path))
    assert len(names) == 1 + len(list(tmp_path.glob("*.py")))
    for module, name in ((bridge, "help_out"), (linear, "item"), (linear, "handle"), (selection, "item"), (gradient, "item")):
        code = next(c for c in module._compile.__code__.co_consts if getattr(c, "co_name", "") == name)
        assert "sources" in code.co_freevars


def test_another_generator_is_left_to_jax(monkeypatch) -> None:
    problem, plan = Problem(LOSSES["logistic"].factory()(), penalties.l1(0.1)), LocalPlan(5, 4, 0.2)
    with jax.default_prng_impl("rbg"):
        native, plain = both_ways(monkeypatch, problem, plan)
    np.testing.assert_allclose(native[0], plain[0], atol=2e-6)


def test_calls_at_the_same_time_do_not_disturb_one_another() -> None:
    problem, plan = Problem(LOSSES["logistic"].factory()(), penalties.l1(0.1), 0.5), LocalPlan(30, 4, 0.2)
    expected = solve_all(problem, plan, clients=tuple(range(4)) * 25)[0]
    with ThreadPoolExecutor(6) as pool:
        for found in pool.map(lambda _: solve_all(problem, plan, clients=tuple(range(4)) * 25)[0], range(24)):
            np.testing.assert_array_equal(found, expected)


def test_what_is_not_finite_is_seen() -> None:
    problem, plan = Problem(LOSSES["softmax"].factory()(), penalties.l1(0.1), 0.5), LocalPlan(2000, 4, 0.2)
    x, _ = solve_all(problem, plan, weight=-10.0)
    assert not np.isfinite(x).any()
