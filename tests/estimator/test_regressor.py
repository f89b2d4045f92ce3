"""The regressor: scikit-learn's cheap checks, the central optimum, weights, counts, and what a budget needs."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression, PoissonRegressor
from sklearn.utils import estimator_checks

import fedpdm
from fedpdm.estimator import FedPDMRegressor

CHECKS = (
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimators_unfitted",
    "check_regressors_no_decision_function",
)


pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("name", CHECKS)
def test_scikit_learn_s_cheap_checks(name):
    check = getattr(estimator_checks, name)
    check("FedPDMRegressor", FedPDMRegressor(clients=2, rounds=3, random_state=0))


def test_without_noise_it_is_least_squares_and_groups_are_clients():
    x, y = load_diabetes(return_X_y=True)
    groups = np.arange(len(y)) % 3
    model = FedPDMRegressor(random_state=0).fit(x, y, groups=groups)
    best = LinearRegression().fit(x, y)
    np.testing.assert_allclose(model.predict(x), best.predict(x), atol=0.5)
    assert model.score(x, y) == pytest.approx(best.score(x, y), abs=1e-3)
    np.testing.assert_allclose(x @ model.coef_ + model.intercept_, model.predict(x))
    assert fedpdm.FedPDMRegressor is FedPDMRegressor
    assert clone(model).get_params() == model.get_params()
    weights = np.ones(len(y))
    weights[:100] = 2
    twice = FedPDMRegressor(random_state=0).fit(x, y, groups=groups, sample_weight=weights)
    np.testing.assert_allclose(twice.predict(x), LinearRegression().fit(x, y, weights).predict(x), atol=0.5)


def test_counts_and_a_budget():
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, (1500, 3))
    y = rng.poisson(np.exp(1 + x @ [1.0, -1.0, 0.5]))
    model = FedPDMRegressor(loss="poisson", clients=3, random_state=0).fit(x, y)
    np.testing.assert_allclose(model.coef_, PoissonRegressor(alpha=0, tol=1e-8, max_iter=1000).fit(x, y).coef_, atol=2e-3)
    private = FedPDMRegressor(epsilon=10.0, radius=1.0, bounds=(0, 20), clients=3, random_state=0, averaged=True).fit(x, y)
    assert "epsilon = 10" in private.guarantee_
    assert private.score(x, y) > 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": 1.0}, "needs radius .* and bounds"),
        ({"epsilon": 1.0, "radius": 0.0, "bounds": (0, 20)}, "needs radius .* above 0"),
        ({"loss": "softmax"}, "loss='softmax' is not for numbers: choose 'squared'"),
        ({"loss": "poisson"}, "is for counts, but the least label is -1"),
    ],
)
def test_what_does_not_fit_is_said(options, words):
    with pytest.raises(ValueError, match=words):
        FedPDMRegressor(**options).fit(np.ones((4, 1)), [1.0, -1.0, 2.0, 0.0])
