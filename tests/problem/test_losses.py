"""Losses: closed forms against autodiff, and the constants that they promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpdm.choices import LOSSES
from fedpdm.problem.losses import logistic, softmax, with_class_weights
from fedpdm.problem.objective import concave_gradient, concave_value

CLASSES = [row.name for row in LOSSES.values() if row.target == "classes"]  # test_regression.py has those of numbers and times


def draw(seed: int, batch: int, scale: float = 1.0, classes: int = 4, n: int = 6):
    rng = np.random.default_rng(seed)
    model = jnp.asarray(scale * rng.normal(size=(classes, n)), jnp.float32)
    features = jnp.asarray(rng.normal(size=(batch, n)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, classes, batch), jnp.int32)
    weights = jnp.asarray(rng.uniform(size=batch), jnp.float32)
    return model, features, labels, weights


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("batch", [1, 9, 200])  # both ways of picking the true class's scores
def test_gradient_is_the_autodiff_gradient(name, batch):
    loss = LOSSES[name].build()
    model, features, labels, weights = draw(0, batch)
    expected = jax.grad(lambda x: jnp.sum(loss.values(x, features, labels) * weights))(model)
    np.testing.assert_allclose(loss.gradient(model, features, labels, weights), expected, rtol=2e-5, atol=2e-5)


def test_logistic_touches_the_true_class_only_and_has_the_paper_s_value():
    loss = LOSSES["logistic"].build()
    model, features, labels, _ = draw(1, 1)
    k, a = int(labels[0]), np.asarray(features[0], float)
    score = float(np.asarray(model[k], float) @ a)
    assert float(loss.values(model, features, labels)[0]) == pytest.approx(np.log1p(np.exp(-score)), rel=1e-6)
    gradient = np.asarray(loss.gradient(model, features, labels, jnp.ones(1)))
    assert not np.delete(gradient, k, axis=0).any()
    np.testing.assert_allclose(gradient[k], -a / (1 + np.exp(score)), rtol=1e-5)


@pytest.mark.parametrize("name", CLASSES)
@given(seed=st.integers(0, 10_000), scale=st.floats(0, 30))
@settings(deadline=None, max_examples=60)
def test_gradient_bound_and_smoothness_hold(name, seed, scale):
    loss = LOSSES[name].build()
    model, features, labels, _ = draw(seed, 1, scale)
    radius = float(jnp.linalg.norm(features[0]))
    one = jnp.ones(1)
    gradient = loss.gradient(model, features, labels, one)
    assert float(jnp.linalg.norm(gradient)) <= loss.gradient_bound(radius) * (1 + 1e-5)
    other = model + 0.1 * draw(seed + 1, 1)[0]
    change = jnp.linalg.norm(loss.gradient(other, features, labels, one) - gradient)
    assert float(change) <= loss.smoothness(radius) * float(jnp.linalg.norm(other - model)) * (1 + 1e-3) + 1e-5


@pytest.mark.parametrize("name", CLASSES)
def test_bounds_are_not_slack(name):
    """The constants are attained to within a few per cent, so a bound that is too small would be seen."""
    loss = LOSSES[name].build()
    a = jnp.array([[2.0, 0.0]])
    label, one = jnp.array([0]), jnp.ones(1)
    wrong = jnp.array([[-50.0, 0.0], [50.0, 0.0]])
    assert float(jnp.linalg.norm(loss.gradient(wrong, a, label, one))) > 0.99 * loss.gradient_bound(2.0)
    step = 1e-2 * jnp.array([[1.0, 0.0], [-1.0 if name == "softmax" else 0.0, 0.0]])
    change = loss.gradient(step, a, label, one) - loss.gradient(-step, a, label, one)
    curvature = float(jnp.linalg.norm(change) / jnp.linalg.norm(2 * step))
    assert curvature > 0.99 * loss.smoothness(2.0)


def test_concave_term():
    x = jnp.linspace(-5, 5, 2001)
    np.testing.assert_allclose(concave_gradient(x), jax.grad(concave_value)(x), atol=1e-6)
    curvature = jax.vmap(jax.grad(concave_gradient))(x)
    assert float(curvature.min()) == pytest.approx(-0.5, abs=1e-4)
    assert float(curvature.max()) == pytest.approx(2.0, abs=1e-4)


@pytest.mark.parametrize("loss", [softmax(), softmax(0.3), logistic(), logistic(0.3)], ids=lambda loss: loss.name)
def test_class_weights_scale_values_gradients_and_their_promises(loss):
    weights = [0.5, 2.0, 1.0]
    heavy = with_class_weights(loss, weights)
    rng = np.random.default_rng(0)
    x, labels = jnp.asarray(3 * rng.normal(size=(3, 4))), jnp.asarray(rng.integers(0, 3, 50))
    features = jnp.asarray(rng.normal(size=(50, 4)))
    features = features / jnp.linalg.norm(features, axis=1, keepdims=True)
    factors = jnp.asarray(weights)[labels]
    np.testing.assert_allclose(heavy.values(x, features, labels), factors * loss.values(x, features, labels), rtol=1e-6)
    each = jnp.asarray(rng.random(50))
    np.testing.assert_allclose(
        heavy.gradient(x, features, labels, each), loss.gradient(x, features, labels, each * factors), atol=1e-6
    )
    norms = [
        float(jnp.linalg.norm(heavy.gradient(x, f[None], k[None], jnp.ones(1)))) for f, k in zip(features, labels, strict=True)
    ]
    assert max(norms) <= heavy.gradient_bound(1.0) * (1 + 1e-6)
    assert heavy.smoothness(1.0) == 2 * loss.smoothness(1.0)
