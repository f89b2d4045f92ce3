"""Custom losses and models: the same numbers as the built-in ones, clipped example by example, refused without a proof."""

import importlib
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_federation

from fedpdm.algorithms.local import Examples, LocalPlan, solve
from fedpdm.config import load_config
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import epsilon_of
from fedpdm.problem import Problem, custom_model, penalties, softmax

NETWORK = Path(__file__).parents[2] / "examples" / "network"
PLAIN = ["data.clients=3", "rounds.participants=3", "rounds.all_first=false", "rounds.total=4", "local.batch_size=0"]
PLAIN += ["local.steps=3", "metrics.diagnose_every=4"]
SOUND = [*PLAIN, "privacy.mechanism=sound", "privacy.epsilon=2.0", "local.step_size=0.5", "algorithm.rho=0.1"]


def linear_scores(parameters, features):
    return features @ parameters["weights"].T


def cross_entropy(parameters, features, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(linear_scores(parameters, features)), labels[:, None], axis=1)[:, 0]


def linear_model(start):
    return custom_model(cross_entropy, linear_scores, {"weights": start})


def network_values(parameters, features, labels):
    hidden = jnp.tanh(features @ parameters["in"])
    return -jnp.take_along_axis(jax.nn.log_softmax(hidden @ parameters["out"]), labels[:, None], axis=1)[:, 0]


def small_network(seed=0):
    one, other = jax.random.split(jax.random.key(seed))
    start = {"in": jax.random.normal(one, (5, 4)), "out": jax.random.normal(other, (4, 3))}
    return custom_model(network_values, lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"], start, name="network")


def test_softmax_written_as_an_own_loss_trains_the_same_model(small_federation):
    built_in = build_simulation(load_config("plain", PLAIN), small_federation)
    own = linear_model(built_in.state.server.x0)
    written = build_simulation(load_config("plain", PLAIN), small_federation, loss=own.loss)
    rows, others = list(built_in.run()), list(written.run())
    np.testing.assert_allclose(own.unravel(written.model)["weights"], built_in.model, atol=1e-5)
    assert others[-1]["objective"] == pytest.approx(rows[-1]["objective"], rel=1e-4)
    assert others[-1]["stationarity"] == pytest.approx(rows[-1]["stationarity"], rel=1e-3)
    assert others[-1]["test_accuracy"] == rows[-1]["test_accuracy"]


def examples(count, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(count, 5)), jnp.float32), jnp.asarray(rng.integers(0, 3, count), jnp.int32)


def test_every_example_s_gradient_is_clipped_by_itself():
    model, (x, y) = small_network(), examples(20)
    start = model.loss().initial()
    free, clipped = model.loss(), model.loss(clip=0.3)
    expected = np.zeros(start.shape)
    for row in range(20):
        gradient = np.asarray(free.gradient(start, x[row : row + 1], y[row : row + 1], jnp.ones(1)))
        expected += 0.1 * gradient * min(1, 0.3 / np.linalg.norm(gradient))
        assert np.linalg.norm(clipped.gradient(start, x[row : row + 1], y[row : row + 1], jnp.ones(1))) <= 0.3
    np.testing.assert_allclose(clipped.gradient(start, x, y, jnp.full(20, 0.1)), expected, atol=1e-5)
    assert clipped.gradient_bound(7.0) == 0.3
    np.testing.assert_allclose(
        softmax().gradient(jnp.ones((3, 5)), x, y, jnp.ones(20)).ravel(),
        linear_model(jnp.ones((3, 5))).loss().gradient(jnp.ones((1, 15)), x, y, jnp.ones(20)).ravel(),
        atol=1e-4,
    )


def worst_change(gradient, trials=60, rows=8):
    """The largest move of a client's mean gradient when one of its slots is emptied, over random models and data."""
    worst = 0.0
    for seed in range(trials):
        (x, y), model = examples(rows, seed), 3 * jax.random.normal(jax.random.key(seed), (1, 32))
        weights = jnp.full(rows, 1 / rows)
        change = gradient(model, x, y, weights) - gradient(model, x.at[0].set(0.0), y.at[0].set(0), weights)
        worst = max(worst, float(jnp.linalg.norm(change)))
    return worst


def test_one_example_moves_the_noised_gradient_by_clip_over_n_at_most_and_without_the_clip_by_more():
    clip, rows = 0.5, 8
    bound = clip / rows
    clipped, free = small_network().loss(clip=clip), small_network().loss()
    assert 0.9 * bound < worst_change(jax.jit(clipped.gradient)) <= bound * (1 + 1e-5)
    assert worst_change(jax.jit(free.gradient)) > 1.5 * bound
    # an empty slot that counted as an example would double the change
    together = jax.vmap(jax.grad(lambda m, a, k: small_network().loss().values(m, a[None], k[None])[0]), (None, 0, 0))

    def every_row_counts(model, x, y, weights):
        each = together(model, x + jnp.where(jnp.any(x != 0, axis=1), 0.0, 1.0)[:, None], y)
        norms = jnp.linalg.norm(each[:, 0], axis=1)
        return jnp.tensordot(weights * jnp.minimum(1.0, clip / norms), each, axes=1)

    assert worst_change(jax.jit(every_row_counts)) > 1.2 * bound


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], "privacy.mode='contractive'"),
        (["local.batch_size=2"], "privacy.mode='one-pass'"),
        (["local.tolerance=0.1"], "privacy.mode='certified'"),
        (["privacy.mode=every-step"], "privacy.clip"),
        (["compression.kind=shared-randk", "compression.uplink=0.5"], "compression.kind=shared-randk"),
    ],
)
def test_what_is_not_proven_for_an_own_loss_is_refused_by_name(settings, words, small_federation):
    with pytest.raises(ConfigError, match=words):
        build_simulation(load_config("plain", [*SOUND, *settings]), small_federation, loss=small_network().loss)


@pytest.mark.parametrize("mode", ["every-step", "linearised", "batch-clipped"])
def test_modes_that_assume_nothing_about_curvature_run(mode):
    settings = [*SOUND, f"privacy.mode={mode}", "privacy.clip=0.5"]
    federation = random_federation([20, 20, 20])
    simulation = build_simulation(load_config("plain", settings), federation, loss=small_network().loss)
    plan = simulation.plan
    assert plan is not None
    assert plan.releases == (3 if mode == "every-step" else 1)
    if mode == "every-step":
        assert plan.sensitivity(0.5, 20) == pytest.approx(0.5 / 20)
    assert np.isfinite(simulation.advance()[-1]["objective"])


def test_groups_that_are_columns_give_the_group_lasso_of_columns():
    rng = np.random.default_rng(0)
    x, g = jnp.asarray(rng.normal(size=(3, 4))), jnp.asarray(rng.normal(size=(3, 4)))
    x = x.at[:, 1].set(0.0)
    columns, named = penalties.group_lasso(0.7), penalties.group_lasso(0.7, groups=np.tile(np.arange(4), (3, 1)))
    np.testing.assert_allclose(named.value(x), columns.value(x), rtol=1e-6)
    np.testing.assert_allclose(named.prox(x, 1.3), columns.prox(x, 1.3), atol=1e-6)
    distance = named.subdifferential_distance(x, g)
    np.testing.assert_allclose(distance[:4], columns.subdifferential_distance(x, g), atol=1e-6)
    assert distance[4] == 0  # nothing is left alone


def test_the_prox_of_named_groups_is_a_minimiser_and_leaves_the_others_alone():
    rng = np.random.default_rng(1)
    groups = np.array([0, 1, 1, -1, 0, 2])
    penalty, step = penalties.group_lasso(0.8, groups=groups), 0.9
    x = jnp.asarray([1.5, 0.2, -0.3, 4.0, -2.0, 0.5])
    best = penalty.prox(x, step)
    assert best[3] == 4.0
    assert best[1] == best[2] == best[5] == 0.0

    def objective(u):
        return float(penalty.value(u) + jnp.sum((u - x) ** 2) / (2 * step))

    least = objective(best)
    assert all(objective(best + 0.1 * jnp.asarray(rng.normal(size=6))) >= least for _ in range(50))
    assert float(jnp.max(penalty.subdifferential_distance(best, (best - x) / step))) < 1e-5
    with pytest.raises(ConfigError, match="whole numbers"):
        penalties.group_lasso(1.0, groups=[0.5])


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(NETWORK)
    return importlib.import_module("train")


def test_the_network_learns_privately_what_no_line_can_tell_apart_and_loses_neurons(example, tmp_path):
    run, model = example.train(epsilon=10.0, strength=0.004, rounds=40, examples=1000, out=tmp_path / "run")
    assert run.summary["test_accuracy"] > 0.85
    assert 2 < example.neurons_left(run, model) < 20
    assert "epsilon = 10" in run.guarantee
    z = run.summary["noise_multiplier"]
    assert epsilon_of(z, 40 * 5, run.summary["delta"], "add-remove") == pytest.approx(10, rel=1e-3)  # 5 releases a round
    assert "A custom model" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_the_example_runs_as_a_command(example, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        sys, "argv", ["train.py", "--epsilon", "0", "--rounds", "10", "--examples", "200", "--out", str(tmp_path / "run")]
    )
    example.main()
    assert "of 24 neurons are left" in capsys.readouterr().out


def test_the_python_of_the_page_on_own_models_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (NETWORK.parent.parent / "docs" / "own-models.md").read_text(), re.DOTALL)
    exec(compile(code, "own-models.md", "exec"), {})
    accuracy, left = re.findall(r"accuracy ([01]\.\d+), (\d+) of 16", capsys.readouterr().out)[0]
    assert float(accuracy) > 0.9
    assert int(left) < 16


def test_an_infinite_gradient_does_not_survive_the_clip():
    """0 * inf would be NaN, in the whole sum: one row would show itself to everybody."""

    def values(p, features, labels):
        del labels
        return jnp.sqrt(jnp.abs(features @ p["w"]))  # its slope at 0 is infinite

    start = {"w": jnp.zeros((2,))}
    model = custom_model(values, lambda p, features: features @ p["w"][:, None], start)
    rows, labels = jnp.array([[1.0, 0.0], [0.5, 0.5]]), jnp.array([0, 0])
    assert not np.isfinite(model.loss().gradient(jnp.zeros((1, 2)), rows, labels, jnp.full(2, 0.5))).all()
    assert np.array_equal(model.loss(clip=1.0).gradient(jnp.zeros((1, 2)), rows, labels, jnp.full(2, 0.5)), np.zeros((1, 2)))
    problem = Problem(model.loss(), penalties.none(), 0.0)
    plan = LocalPlan(steps=2, batch_size=0, step_size=0.1, batch_clip=1.0)
    examples = Examples(rows[None], labels[None], jnp.array([2]), jnp.int32(0))
    x, _ = solve(problem, plan, examples, jnp.zeros((1, 2)), 0.0, 0.1, jnp.float32(0.1), jax.random.key(0))
    assert np.isfinite(x).all()


def test_newton_is_refused_for_a_model_that_is_not_linear(small_federation):
    settings = [*PLAIN, "local.tolerance=1e-10", "local.solver=newton"]
    with pytest.raises(ConfigError, match=r"local\.solver=newton needs a linear model, which 'network' is not"):
        build_simulation(load_config("plain", settings), small_federation, loss=small_network().loss)


def test_standardised_features_are_refused_for_a_model_that_is_not_linear(small_federation):
    with pytest.raises(ConfigError, match=r"data\.standardise=true needs a linear model, which 'network' is not"):
        build_simulation(load_config("plain", [*PLAIN, "data.standardise=true"]), small_federation, loss=small_network().loss)
