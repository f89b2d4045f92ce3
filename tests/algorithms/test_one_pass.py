"""Linearised mode reads many rows block by block, and gets the gradient of all rows at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedpdm.algorithms import LocalPlan, local
from fedpdm.algorithms.local import Examples, solve
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
        read.append(local._reads_in_blocks(plan, examples))
        return jax.jit(lambda: solve(problem, plan, examples, x0, term, 0.7, jnp.float32(0.05), jax.random.key(0))[0])()

    at_once = answer()
    for name, value in {"MANY_ROWS": 1, "BLOCK_BYTES": 4 * WIDTH * rows_of_a_block}.items():
        monkeypatch.setattr(local, name, value)
    in_blocks = answer()
    assert read == [False, True]
    np.testing.assert_allclose(in_blocks, at_once, rtol=0, atol=1e-6)
