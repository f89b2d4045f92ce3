"""Draws without loops are JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpdm.draws import fold_in, normal, split


def data(key) -> np.ndarray:
    return np.asarray(jax.random.key_data(key))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**31 - 1), st.integers(1, 5))
def test_keys_are_those_of_jax(seed: int, number: int, count: int) -> None:
    key = jax.random.key(seed)
    np.testing.assert_array_equal(data(fold_in(key, number)), data(jax.random.fold_in(key, number)))
    np.testing.assert_array_equal(data(split(key, count)), data(jax.random.split(key, count)))


@pytest.mark.parametrize("shape", [(), (7,), (10, 785), (3, 4, 5)])
def test_normals_are_those_of_jax(shape) -> None:
    """Under vmap and jit too; a few units in the last place come from how the two programs are compiled."""
    keys = jax.random.split(jax.random.key(5), 4)
    expected = jax.jit(jax.vmap(lambda key: jax.random.normal(key, shape)))(keys)
    found = jax.jit(jax.vmap(lambda key: normal(key, shape)))(keys)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(normal(keys[0], shape), expected[0], rtol=2e-6, atol=1e-7)


def test_another_generator_is_left_to_jax() -> None:
    key = jax.random.key(3, impl="rbg")
    np.testing.assert_array_equal(data(fold_in(key, 4)), data(jax.random.fold_in(key, 4)))
    np.testing.assert_array_equal(data(split(key, 2)), data(jax.random.split(key, 2)))
    np.testing.assert_array_equal(normal(key, (3,)), jax.random.normal(key, (3,)))


def test_a_draw_is_one_pass() -> None:
    text = jax.jit(lambda key: normal(key, (100, 50))).lower(jax.random.key(0)).compile().as_text()
    assert "while(" not in text
    assert jnp.isfinite(normal(jax.random.key(0), (1000,))).all()
