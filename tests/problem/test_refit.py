"""Fewer weights at the least change of scores on public rows."""

import numpy as np
import pytest

from fedpdm.errors import ConfigError
from fedpdm.problem.refit import ALWAYS, refit, refit_path, second_moment

ROWS = np.random.default_rng(0).normal(size=(400, 12)) @ np.random.default_rng(1).normal(size=(12, 30))
WEIGHTS = np.random.default_rng(2).normal(size=(3, 30)).astype(np.float32)
MOMENT = second_moment(ROWS)


def error(model: np.ndarray) -> float:
    """The mean squared change of the scores, with the ridge."""
    gap = model.astype(float) - WEIGHTS
    return float(np.einsum("ij,jk,ik", gap, MOMENT, gap))


def test_all_weights_give_the_model_itself():
    np.testing.assert_allclose(refit(WEIGHTS, MOMENT, WEIGHTS.size), WEIGHTS, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 7, 30, 60])
def test_no_other_weights_on_the_same_support_are_closer(count):
    thin = refit(WEIGHTS, MOMENT, count)
    assert np.count_nonzero(thin) == count
    rng = np.random.default_rng(count)
    for _ in range(20):
        other = thin + 0.01 * rng.normal(size=thin.shape) * (thin != 0)
        assert error(thin) <= error(other) + 1e-6


def test_refitting_beats_removing_by_far():
    """Public rows of rank 12: 36 weights in 90 can give the same scores, the largest 36 alone cannot."""
    cut = np.where(np.abs(WEIGHTS) >= np.sort(np.abs(WEIGHTS), axis=None)[-36], WEIGHTS, 0)
    assert error(refit(WEIGHTS, MOMENT, 36)) < 0.3 * error(cut)


def test_a_path_goes_down_one_way():
    path = refit_path(WEIGHTS, MOMENT, [10, 40, 20])
    assert sorted(path) == [10, 20, 40]
    assert error(path[40]) <= error(path[20]) <= error(path[10])
    for small, large in ((10, 20), (20, 40)):
        assert not ((path[small] != 0) & (path[large] == 0)).any()


def test_zero_weights_stay_zero():
    sparse = np.where(np.arange(30) < 5, WEIGHTS, 0).astype(np.float32)
    np.testing.assert_array_equal(refit(sparse, MOMENT, 40)[:, 5:], 0)


@pytest.mark.parametrize("count", [0, 91])
def test_a_count_that_does_not_fit_is_refused(count):
    with pytest.raises(ConfigError, match="keep 1 to 90"):
        refit(WEIGHTS, MOMENT, count)


def test_a_column_of_indicators_counts_without_its_mean():
    """A word with three levels that adds nearly the same in every row leaves before a number that tells rows apart."""
    rng = np.random.default_rng(3)
    levels = np.eye(3)[rng.integers(0, 3, 500)]
    rows = np.column_stack([levels, rng.uniform(size=500), np.ones(500)])
    weights, columns = np.array([[5.0, 5.1, 5.0, 1.0, -5.0]]), np.array([[0, 0, 0, 1, ALWAYS]])
    thin = refit(weights, second_moment(rows), 1, columns)
    assert np.flatnonzero(thin).tolist() == [3, 4]
    assert thin[0] == pytest.approx([0, 0, 0, 1, 0], abs=0.1)
