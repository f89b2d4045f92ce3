"""Sums over clients are exact to a few roundings, however many there are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.problem.sums import GROUP, add_up


@pytest.mark.parametrize("clients", [1, 30, GROUP, GROUP + 1, 3 * GROUP**2 + 5])
def test_a_sum_is_that_of_double_precision(clients):
    """What is not a number stays in its coordinate, where a diverged client is found. Flags are counted."""
    rng = np.random.default_rng(clients)
    values, shares = rng.normal(size=(clients, 3, 40)).astype(np.float32), rng.uniform(size=clients).astype(np.float32)
    values[0, 1, 7], values[-1, 2, 8] = np.nan, np.inf
    for each in (None, shares):
        exact = np.tensordot(np.ones(clients) if each is None else each, values.astype(np.float64), 1)
        np.testing.assert_allclose(jax.jit(add_up)(values, each), exact, rtol=0, atol=2e-6 * clients**0.5)
    np.testing.assert_array_equal(add_up(jnp.asarray(values > 0)), np.sum(values > 0, axis=0))


def test_rounding_does_not_grow_with_the_clients():
    """Added one after the other, a million times 0.1 would be 1 % off."""
    np.testing.assert_allclose(jax.jit(add_up)(jnp.full((1_000_000, 2), 0.1)), 1e5, rtol=2e-6)
