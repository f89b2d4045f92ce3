"""Linearised mode reads many rows block by block, and gets the gradient of all rows at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.algorithms import LocalPlan, local
from fedpdm.algorithms.local import Examples, solve
from fedpdm.native.gradient import BLOCK, CHUNK, SHORT, exponential, two_class_gradient
from fedpdm.problem import Problem, logistic, penalties, softmax
from fedpdm.problem.losses import with_class_weights

ROWS, WIDTH = 21, 30
LOSSES = [softmax(), softmax(0.3), logistic(0.4), with_class_weights(softmax(), [0.5, 2.0, 1.0])]


@pytest.mark.parametrize(("which", "rows_of_a_block"), [(0, 8), (1, 20), (2, ROWS), (3, 9)])
def test_blocks_of_any_size_give_the_same_step(monkeypatch, which, rows_of_a_block):
    rng = np.random.default_rng(which)
    features = jnp.asarray(rng.normal(size=(2, ROWS, WIDTH)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 3, (2, ROWS)), jnp.int32)
    persons = (jnp.asarray(rng.uniform(0.2, 1, (2, ROWS)), jnp.float32), jnp.array([9.0, 12.0])) if which % 2 else (None, None)
    x0, term = (jnp.asarray(rng.normal(size=(3, WIDTH)), jnp.float32) for _ in range(2))
    problem, plan = Problem(LOSSES[which], penalties.none()), LocalPlan(3, 0, 0.05, linearised=True)
    examples = Examples(features, labels, jnp.array([ROWS, 17]), jnp.int32(1), *persons)
    read = []

    def answer():
        read.append(local._one_pass(problem, plan, examples, jnp.ones(ROWS), x0) is not None)
        return jax.jit(lambda: solve(problem, plan, examples, x0, term, 0.7, jnp.float32(0.05), jax.random.key(0))[0])()

    at_once = answer()
    for name, value in {"MANY_ROWS": 1, "BLOCK_BYTES": 4 * WIDTH * rows_of_a_block}.items():
        monkeypatch.setattr(local, name, value)
    in_blocks = answer()
    assert read == [False, True]
    np.testing.assert_allclose(in_blocks, at_once, rtol=0, atol=1e-6)


def test_the_exponential_is_right_to_the_last_digits():
    """And it is one for zero, ends at 80 on both sides, and keeps NaN."""
    x = np.linspace(-80, 80, 100_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose([exponential(value) for value in x], exact, rtol=1e-7)
    limits = [exponential(np.float32(value)) for value in (0.0, np.inf, 200.0, -np.inf, -200.0, np.nan)]
    np.testing.assert_array_equal(limits, [1.0, *2 * [exponential(x[-1])], *2 * [exponential(x[0])], np.nan])


@pytest.mark.parametrize("rows", [1, 2, CHUNK + 3, BLOCK, 2 * BLOCK + 37])
@pytest.mark.parametrize(("clip", "width"), [(1.0, WIDTH), (0.3, WIDTH), (0.3, SHORT + 3)])
def test_the_kernel_for_two_classes_gives_the_gradient_of_the_loss(rows, clip, width):
    rng = np.random.default_rng(rows)
    features = jnp.asarray(rng.normal(size=(3, rows, width)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 2, (3, rows)), jnp.int32)
    weights = jnp.asarray(rng.uniform(0, 1, (3, rows)) * (rng.uniform(size=(3, rows)) > 0.2) / rows, jnp.float32)
    model = jnp.asarray(rng.normal(size=(2, width)), jnp.float32)
    loss = softmax(clip)

    def of(client, own):
        return two_class_gradient(features.reshape(-1, width), labels.reshape(-1), client * rows, own, model, clip)

    exact = [loss.gradient(model, features[c], labels[c], weights[c]) for c in range(3)]
    mapped = jax.jit(jax.vmap(of))(jnp.arange(3), weights)
    np.testing.assert_allclose(mapped, jnp.stack(exact), rtol=0, atol=2e-6)
    alone = jax.jit(of)(jnp.int32(1), weights[1])
    np.testing.assert_array_equal(alone, mapped[1])
    for _ in range(5):  # threads take blocks in another order every time
        np.testing.assert_array_equal(jax.jit(of)(jnp.int32(1), weights[1]), alone)


def test_many_rows_of_two_classes_are_read_by_the_kernel(monkeypatch):
    """Also where a client number is out of range: no memory but the arrays' is read."""
    rng = np.random.default_rng(5)
    features = jnp.asarray(rng.normal(size=(2, ROWS, WIDTH)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 2, (2, ROWS)), jnp.int32)
    x0 = jnp.asarray(rng.normal(size=(2, WIDTH)), jnp.float32)
    problem, plan = Problem(softmax(0.4), penalties.none()), LocalPlan(3, 0, 0.05, linearised=True)

    def text(client):
        examples = Examples(features, labels, jnp.array([ROWS, 17]), jnp.int32(client))
        work = jax.jit(lambda: solve(problem, plan, examples, x0, 0.0, 0.7, jnp.float32(0.05), jax.random.key(0))[0])
        return work.lower().as_text(), work()

    (plain, at_once), _ = text(1), monkeypatch.setattr(local, "KERNEL_ROWS", 1)
    (native, in_one_pass), (_, beyond) = text(1), text(10**6)
    assert "fedpdm_two_class_gradient" not in plain
    assert "fedpdm_two_class_gradient" in native
    np.testing.assert_allclose(in_one_pass, at_once, rtol=0, atol=1e-6)
    assert np.isfinite(beyond).all()


@pytest.mark.parametrize(("classes", "limit"), [(2, "KERNEL_ROWS"), (3, "MANY_ROWS")])
def test_rows_without_padding_are_read_where_they_are(monkeypatch, classes, limit):
    """The client's rows are a part of a longer array: no copy of them is made."""
    monkeypatch.setattr(local, limit, 1)
    monkeypatch.setattr(local, "BLOCK_BYTES", 4 * WIDTH * 8)
    rng = np.random.default_rng(6)
    features = jnp.asarray(rng.normal(size=(3 * ROWS, WIDTH)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, classes, 3 * ROWS), jnp.int32)
    x0 = jnp.asarray(rng.normal(size=(classes, WIDTH)), jnp.float32)
    problem, plan = Problem(softmax(0.4), penalties.none()), LocalPlan(3, 0, 0.05, linearised=True)

    def work(features, labels, start, unpadded):
        own = (jax.lax.dynamic_slice_in_dim(array, start, ROWS)[None] for array in (features, labels))
        examples = Examples(*own, jnp.array([17]), jnp.int32(0), unpadded=(features, labels, start) if unpadded else None)
        return solve(problem, plan, examples, x0, 0.0, 0.7, jnp.float32(0.05), jax.random.key(0))[0]

    ways = [jax.jit(work, static_argnums=3).lower(features, labels, jnp.int32(11), way).compile() for way in (False, True)]
    copied, in_place = (way(features, labels, jnp.int32(11)) for way in ways)
    np.testing.assert_array_equal(in_place, copied)
    of_the_client = f"f32[{ROWS},{WIDTH}]"
    assert [of_the_client in way.as_text().replace(f"f32[1,{ROWS}", f"f32[{ROWS}") for way in ways] == [True, False]
