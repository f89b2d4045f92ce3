"""Intervals: without noise those of statsmodels; with a penalty those of the unpenalised model on the same columns."""

import numpy as np
import pytest
import statsmodels.api as sm

from fedpdm.data.standard import Standard
from fedpdm.errors import ConfigError
from fedpdm.problem import huber, poisson, softmax, squared
from fedpdm.problem.inference import Intervals, contrast, exact_intervals
from fedpdm.problem.multinomial import multinomial_intervals
from fedpdm.runs.intervals import folded
from fedpdm.runs.saved import interval_names

ROWS, TRUE = 400, np.array([0.6, -0.4, 0.0, 0.8])


def table(seed=0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(ROWS, 3)) @ (np.eye(3) + 0.3), np.ones(ROWS)])
    return x, rng


def even(rows=ROWS):
    return np.full(rows, 1 / rows)


def found_at(loss, model, x, y):
    return exact_intervals(loss, np.atleast_2d(model), x, y, even(len(y)))


def test_errors_of_a_linear_model_are_those_of_statsmodels_from_any_model_that_is_not_zero():
    x, rng = table()
    y = x @ TRUE + rng.normal(size=ROWS) * (1 + np.abs(x[:, 0]))
    best = sm.OLS(y, x).fit(cov_type="HC1")
    for start in (best.params, np.ones(4)):  # Newton steps lead to least squares
        found = found_at(squared(), start, x, y)
        np.testing.assert_allclose(found.estimate, best.params, rtol=1e-6)
        np.testing.assert_allclose(found.errors, best.bse, rtol=1e-6)
    low, high = found.ends(0.95)
    by_hand = best.get_robustcov_results("HC1", use_t=True)
    np.testing.assert_allclose(np.column_stack([low, high]), by_hand.conf_int(0.05), rtol=1e-6)
    np.testing.assert_allclose(found.p_values(), by_hand.pvalues, rtol=1e-6)


@pytest.mark.parametrize("kind", ["poisson", "logistic"])
def test_errors_of_counts_and_classes_are_those_of_statsmodels(kind):
    x, rng = table()
    few = np.sqrt(ROWS / (ROWS - 4))  # statsmodels does not count the coefficients here
    if kind == "poisson":
        y = rng.poisson(np.exp(0.5 * x @ TRUE)).astype(float)
        best = sm.GLM(y, x, family=sm.families.Poisson()).fit(tol=1e-13, cov_type="HC0")
        moved = best.params - np.array([0, 0, 0, np.log(y.max())])
        found = found_at(poisson(), moved, x, y / y.max())
        np.testing.assert_allclose(found.estimate, moved, rtol=1e-5)
    else:
        y = (rng.random(ROWS) < 1 / (1 + np.exp(-x @ TRUE))).astype(int)
        best = sm.Logit(y, x).fit(disp=0, tol=1e-12, cov_type="HC0")
        found = found_at(softmax(), np.stack([-best.params / 2, best.params / 2]), x, y)
        np.testing.assert_allclose(found.estimate, best.params, rtol=1e-5)
    np.testing.assert_allclose(found.errors, best.bse * few, rtol=1e-5)


def test_intervals_of_several_classes_are_those_of_statsmodels_on_a_public_table_and_survive_standardising():
    """Statsmodels' survey of American voters: seven parties, each against the first."""
    data = sm.datasets.anes96.load_pandas()
    x, y = np.column_stack([data.exog.to_numpy(float), np.ones(944)]), data.endog.to_numpy().astype(int)
    best = sm.MNLogit(y, x).fit(disp=0, maxiter=200, tol=1e-12, cov_type="HC0")
    start = np.random.default_rng(0).normal(size=(7, 6)) * 0.01
    found = multinomial_intervals(start, x, y, even(944))
    np.testing.assert_allclose(found.estimate, best.params.T.ravel(), rtol=1e-6)
    np.testing.assert_allclose(found.errors, best.bse.T.ravel() * np.sqrt(944 / (944 - 36)), rtol=1e-6)

    centre, scale = x.mean(axis=0).astype(np.float32), x.std(axis=0).astype(np.float32)
    centre[-1], scale[-1] = 0, 1
    standard = Standard(centre, scale, True)
    back = folded(multinomial_intervals(start, standard.apply(x), y, even(944)), standard)
    np.testing.assert_allclose(back.estimate, found.estimate, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(back.errors, found.errors, rtol=1e-3)
    assert interval_names(["a", "b", "c"], ["x", "bias"]) == ["b: x", "b: bias", "c: x", "c: bias"]


def test_coefficients_that_a_penalty_made_zero_are_left_out_and_shrinkage_is_taken_off():
    x, rng = table()
    y = x @ TRUE + rng.normal(size=ROWS)
    found = found_at(squared(), [0.3, -0.1, 0.0, 0.5], x, y)
    refit = sm.OLS(y, x[:, [0, 1, 3]]).fit(cov_type="HC0")
    assert found.estimate[2] == 0
    assert np.isnan(found.errors[2])
    np.testing.assert_allclose(found.estimate[[0, 1, 3]], refit.params, rtol=1e-6)
    np.testing.assert_allclose(found.errors[[0, 1, 3]], refit.bse * np.sqrt(ROWS / (ROWS - 3)), rtol=1e-6)


def test_of_columns_that_go_together_the_last_is_the_baseline():
    x, rng = table()
    y = x @ TRUE + rng.normal(size=ROWS)
    level = (x[:, 0] > 0).astype(float)
    both = np.column_stack([x[:, 1:3], level, 1 - level, x[:, 3]])
    found = found_at(squared(), np.ones(5), both, y)
    assert np.isnan(found.errors).tolist() == [False, False, False, True, False]
    assert found.estimate[3] == 0
    plain = sm.OLS(y, both[:, [0, 1, 2, 4]]).fit(cov_type="HC1")
    np.testing.assert_allclose(found.estimate[[0, 1, 2, 4]], plain.params, rtol=1e-6)
    np.testing.assert_allclose(found.errors[[0, 1, 2, 4]], plain.bse, rtol=1e-6)


def test_outliers_widen_the_interval_of_a_huber_model_less():
    x, rng = table()
    y = x @ TRUE + rng.standard_t(2, ROWS)
    robust = sm.RLM(y, x, M=sm.robust.norms.HuberT()).fit(update_scale=False)
    found = found_at(huber(1.345 * robust.scale), robust.params, x, y)
    np.testing.assert_allclose(found.estimate, robust.params, rtol=1e-3)
    assert (found.errors < found_at(squared(), np.ones(4), x, y).errors).all()


def test_models_without_one_score_are_refused():
    with pytest.raises(ConfigError, match="a number or two classes, and this model has 3"):
        contrast(np.zeros((3, 2)))
    assert Intervals(np.zeros(1), np.eye(1), 9.0).p_values() == [1.0]


def test_a_table_that_is_too_large_is_refused_before_any_work():
    rows, width = 200_000, 400
    nothing = np.broadcast_to(np.float32(0), (rows, width))
    with pytest.raises(ConfigError, match="200000 rows of 400 features are too many for intervals"):
        exact_intervals(squared(), np.ones((1, width)), nothing, nothing[:, 0], nothing[:, 0])
