"""Gradients of all rows, each of which is read once: by a kernel, or block by block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.algorithms import LocalPlan, local
from fedpdm.algorithms.local import Examples, solve
from fedpdm.native import SWITCH
from fedpdm.native.gradient import BLOCK, CHUNK, PARTS, TILE, exponential, softmax_gradient
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
    monkeypatch.setenv(SWITCH, "0")
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


@pytest.mark.parametrize("rows", [1, 2, CHUNK + 3, 700, PARTS * BLOCK + 37])
@pytest.mark.parametrize(
    ("clip", "width", "classes"), [(1.0, 30, 2), (0.3, 30, 2), (0.3, 131, 3), (1.0, 7, 4), (0.4, TILE + 9, 7)]
)
def test_the_kernel_gives_the_gradient_of_the_loss(rows, clip, width, classes):
    rng = np.random.default_rng(rows)
    features = jnp.asarray(rng.normal(size=(3, rows, width)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, classes, (3, rows)), jnp.int32)
    weights = jnp.asarray(rng.uniform(0, 1, (3, rows)) * (rng.uniform(size=(3, rows)) > 0.2) / rows, jnp.float32)
    model = jnp.asarray(rng.normal(size=(classes, width)), jnp.float32)
    loss = softmax(clip)

    def of(client, own):
        return softmax_gradient(features.reshape(-1, width), labels.reshape(-1), client * rows, own, model, clip)

    exact = [loss.gradient(model, features[c], labels[c], weights[c]) for c in range(3)]
    mapped = jax.jit(jax.vmap(of))(jnp.arange(3), weights)
    np.testing.assert_allclose(mapped, jnp.stack(exact), rtol=0, atol=4e-6)
    alone = jax.jit(of)(jnp.int32(1), weights[1])
    np.testing.assert_array_equal(alone, mapped[1])
    for _ in range(5):  # threads take blocks in another order every time
        np.testing.assert_array_equal(jax.jit(of)(jnp.int32(1), weights[1]), alone)


@pytest.mark.parametrize(
    ("score", "classes"), [(100.0, 2), (1e4, 2), (np.nan, 2), (100.0, 3), (1e4, 3), (np.inf, 3), (np.nan, 3)]
)
def test_the_kernel_knows_large_scores(score, classes):
    """The largest score of an example is taken off before the powers; what is not a number stays so."""
    features = jnp.full((1, 1), score, jnp.float32)
    model = jnp.array([[-2.0], [0.5], [2.0]], jnp.float32)[:classes]
    for label in range(classes):
        given = features, jnp.array([label], jnp.int32)
        exact = softmax(0.5).gradient(model, *given, jnp.ones(1))
        found = softmax_gradient(*given, jnp.int32(0), jnp.ones(1), model, 0.5)
        np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-29)  # powers end at e^-80


@pytest.mark.parametrize("linearised", [True, False])
@pytest.mark.parametrize("classes", [2, 5])
def test_steps_on_all_rows_are_computed_by_the_kernel(monkeypatch, classes, linearised):
    """Also where a client number is out of range: no memory but the arrays' is read."""
    rng = np.random.default_rng(5)
    features = jnp.asarray(rng.normal(size=(2, ROWS, WIDTH)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, classes, (2, ROWS)), jnp.int32)
    x0 = jnp.asarray(rng.normal(size=(classes, WIDTH)), jnp.float32)
    problem, plan = Problem(softmax(0.4), penalties.none()), LocalPlan(3, 0, 0.05, linearised=linearised)

    def text(client):
        examples = Examples(features, labels, jnp.array([ROWS, 17]), jnp.int32(client))
        work = jax.jit(lambda: solve(problem, plan, examples, x0, 0.0, 0.7, jnp.float32(0.05), jax.random.key(0))[0])
        return work.lower().as_text(), work()

    (native, in_one_pass), (_, beyond), _ = text(1), text(10**6), monkeypatch.setenv(SWITCH, "0")
    plain, at_once = text(1)
    assert "fedpdm_softmax_gradient" not in plain
    assert "fedpdm_softmax_gradient" in native
    np.testing.assert_allclose(in_one_pass, at_once, rtol=0, atol=1e-6)
    assert np.isfinite(beyond).all()


@pytest.mark.parametrize("loss", [softmax(0.4), logistic(0.4)], ids=["kernel", "blocks"])
def test_rows_without_padding_are_read_where_they_are(monkeypatch, loss):
    """The client's rows are a part of a longer array: no copy of them is made."""
    monkeypatch.setattr(local, "MANY_ROWS", 1)
    monkeypatch.setattr(local, "BLOCK_BYTES", 4 * WIDTH * 8)
    rng = np.random.default_rng(6)
    features = jnp.asarray(rng.normal(size=(3 * ROWS, WIDTH)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 3, 3 * ROWS), jnp.int32)
    x0 = jnp.asarray(rng.normal(size=(3, WIDTH)), jnp.float32)
    problem, plan = Problem(loss, penalties.none()), LocalPlan(3, 0, 0.05, linearised=True)

    def work(features, labels, start, unpadded):
        own = (jax.lax.dynamic_slice_in_dim(array, start, ROWS)[None] for array in (features, labels))
        examples = Examples(*own, jnp.array([17]), jnp.int32(0), unpadded=(features, labels, start) if unpadded else None)
        return solve(problem, plan, examples, x0, 0.0, 0.7, jnp.float32(0.05), jax.random.key(0))[0]

    ways = [jax.jit(work, static_argnums=3).lower(features, labels, jnp.int32(11), way).compile() for way in (False, True)]
    copied, in_place = (way(features, labels, jnp.int32(11)) for way in ways)
    np.testing.assert_array_equal(in_place, copied)
    of_the_client = f"f32[{ROWS},{WIDTH}]"
    assert [of_the_client in way.as_text().replace(f"f32[1,{ROWS}", f"f32[{ROWS}") for way in ways] == [True, False]


def test_more_classes_than_the_kernel_is_fast_with_are_left_to_xla():
    """With one gradient a round the kernel serves any number, and Newton's method differentiates its gradient."""
    examples = Examples(jnp.ones((1, 5, 2)), jnp.zeros((1, 5), jnp.int32), jnp.array([5]), jnp.int32(0))
    few, many = (jnp.ones((classes, 2)) for classes in (local.MANY_CLASSES, local.MANY_CLASSES + 1))

    def served(x0, **plan):
        given = Problem(softmax(), penalties.none()), LocalPlan(2, 0, 0.1, **plan), examples
        return local._one_pass(*given, jnp.ones(5), x0) is not None

    assert served(few)
    assert not served(many)
    assert served(many, linearised=True)
    assert not served(few, solver="newton")


def test_the_kernel_is_called_with_what_it_can_read():
    """Anything else would be read, or written, beyond the ends of arrays. Weights may have any type."""
    rows, labels, model = jnp.ones((64, 40)), jnp.zeros(64, jnp.int32), jnp.ones((2, 40))
    for given in [(rows, labels, model[:, :3]), (rows, labels[:9], model), (rows, labels.astype(jnp.float32), model)]:
        with pytest.raises(ValueError, match="features"):
            softmax_gradient(given[0], given[1], jnp.int32(0), jnp.ones(64), given[2], 1.0)
    with jax.enable_x64(True):
        weights = jnp.full(64, 1 / 64, jnp.float64)
        found = softmax_gradient(rows.astype(jnp.float32), labels, jnp.int32(0), weights, model, 1.0)
    np.testing.assert_allclose(found, [[-0.5] * 40, [0.5] * 40], rtol=1e-6)
