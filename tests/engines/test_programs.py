"""Programs that differ only in numbers share one executable, with the same results as separate ones."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.config import load_config
from fedpdm.data.prepare import build_federation
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.engines.simulation.programs import shared_program

SMALL = ["data.name=digits", "data.clients=6", "rounds.participants=3", "rounds.total=4", "metrics.diagnose_every=2"]


@pytest.fixture(scope="module")
def federation():
    return build_federation(load_config("plain", SMALL), progress=False)


def everything(by: float, power: int):
    """A function with numbers in every kind of nesting: loops, branches, inner functions, captured arrays."""
    table = jnp.arange(3.0) + by

    @jax.jit
    def inner(x):
        return x * by + table

    def function(x):
        x = jax.lax.fori_loop(0, 3, lambda i, y: inner(y) / (by + 1), x)
        x = jax.lax.while_loop(lambda y: jnp.sum(y) < by * 50, lambda y: y * 1.5 + by, x)
        x, rows = jax.lax.scan(lambda c, r: (c + by * r, c[0] * by), x, jnp.arange(4.0))
        each = jax.vmap(lambda v: jax.lax.while_loop(lambda w: w < by, lambda w: w + by / 4, v))(x - 10)
        branch = jax.lax.cond(x[0] > by, lambda: x * by, lambda: x + by)
        return branch**power + each, rows, jax.nn.softplus(-by * x), jax.random.normal(jax.random.key(0), (2,)) * by

    return function


def test_a_shared_program_gives_the_results_of_its_own_numbers():
    for by in (0.5, 2.0, -1.25):
        function = everything(by, 2)
        expected, shared = jax.jit(function)(jnp.ones(3)), shared_program(function, (jnp.ones(3),)).call(jnp.ones(3))
        for one, other in zip(expected, shared, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


class Mine(NamedTuple):
    x0: jax.Array


class Yours(NamedTuple):
    x0: jax.Array


def test_programs_of_equal_text_return_their_own_types():
    """Two algorithms may keep the same arrays under different names; the second one must not get the first one's state."""
    for kind in (Mine, Yours):
        found = shared_program(lambda x, kind=kind: kind(2.0 * x.x0), (kind(jnp.ones(3)),)).call(kind(jnp.ones(3)))
        assert type(found) is kind


def test_a_program_that_was_compiled_quickly_is_not_used_for_a_thorough_one() -> None:
    """Their last bits differ, and a result must not depend on what a process did before."""
    found = []
    for quickly in (True, False, True):
        jax.config.update("jax_disable_most_optimizations", quickly)
        try:
            found.append(shared_program(lambda x: jnp.sum(jnp.sin(x) * 1.75), (jnp.ones(11),)).compiled)
        finally:
            jax.config.update("jax_disable_most_optimizations", False)
    assert found == [True, True, False]


def test_programs_of_another_shape_are_compiled_again():
    shared_program(everything(0.5, 2), (jnp.ones(3),))
    assert not shared_program(everything(0.75, 2), (jnp.ones(3),)).compiled
    assert shared_program(everything(0.75, 3), (jnp.ones(3),)).compiled, "a static power is not a number of the program"


@pytest.mark.parametrize("name", ["fedpdm", "scaffold"])
def test_settings_that_differ_in_numbers_compile_once(federation, name):
    common = [*SMALL, f"algorithm.name={name}", "compression.uplink=0.5", "privacy.mechanism=paper", "local.steps=2"]
    first = ["privacy.epsilon=30.0", "problem.beta=0.1", "problem.gamma=0.002", "local.step_size=0.1"]
    second = ["privacy.epsilon=5.0", "problem.beta=0.3", "problem.gamma=0.001", "local.step_size=0.03", "rounds.total=6"]
    models = {}
    for settings in (first, second):
        simulation = build_simulation(load_config("plain", [*common, *settings]), federation)
        list(simulation.run())
        models[settings[0]] = simulation
    kept = models[second[0]]
    assert kept.compilations == 0, "the second run compiles nothing"
    assert np.abs(kept.model - models[first[0]].model).max() > 1e-3, "and is not the first one again"
    alone = build_simulation(load_config("plain", [*common, *second]), federation)
    state, _ = jax.jit(alone._run_rounds)(*_first_call(alone), alone.window.data, alone._test)
    again = build_simulation(load_config("plain", [*common, *second]), federation)
    again.advance()
    np.testing.assert_allclose(state.server.x0, again.model, rtol=1e-5, atol=1e-6)


LEVELS = [
    ["local.steps=3", "local.schedule=constant", "problem.penalty_scale=sum", "problem.penalty_by=prox", "rounds.total=4"],
    ["local.steps=2", "local.schedule=inverse-sqrt", "problem.penalty_scale=sum", "problem.penalty_by=subgradient"],
    ["local.steps=2", "local.schedule=inverse-sqrt", "problem.penalty_scale=mean", "problem.penalty_by=prox"],
]


def test_readings_of_the_paper_share_their_programs(federation, monkeypatch):
    """Steps, schedule, place and scale of the penalty are numbers of the program; each run gives what it gives alone."""
    common = [*SMALL, "problem.loss=logistic", "local.batch_size=4", "problem.gamma=0.5", "local.tolerance=1e-6"]
    models = []
    for number, levels in enumerate(LEVELS):
        simulation = build_simulation(load_config("plain", [*common, "metrics.diagnose_every=0", *levels]), federation)
        list(simulation.run())
        assert number == 0 or simulation.compilations == 0, levels
        models.append(simulation.model)
    assert all(np.abs(a - b).max() > 1e-3 for a, b in itertools.pairwise(models)), "they are different runs"
    monkeypatch.setenv("FEDPDM_SHARED_PROGRAMS", "0")
    for levels, model in zip(LEVELS, models, strict=True):
        alone = build_simulation(load_config("plain", [*common, "metrics.diagnose_every=0", *levels]), federation)
        list(alone.run())
        np.testing.assert_allclose(alone.model, model, rtol=1e-5, atol=1e-6)


def _first_call(simulation):
    who, _, state = simulation.window.bring_in(simulation.state, *simulation._who(0, 1))
    return state, (jnp.int32(0), jnp.int32(1), jnp.uint32(0), who)
