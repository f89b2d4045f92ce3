"""The classifier by scikit-learn's own checks, in its pipelines and searches, and as the simulator's equal."""

import numpy as np
import pytest
import sklearn
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedpdm
from fedpdm.estimator import FedPDMClassifier

pytestmark = pytest.mark.usefixtures("quick_compilation")


@parametrize_with_checks([FedPDMClassifier(clients=2, rounds=10, local_steps=50, random_state=0)])
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def tumours():
    x, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(x), np.array(["malignant", "benign"])[y]


def test_it_is_the_class_that_the_package_offers():
    assert fedpdm.FedPDMClassifier is FedPDMClassifier


def test_without_noise_it_comes_close_to_the_central_optimum_and_groups_are_clients(tumours):
    x, y = tumours
    hospitals = np.array(["north", "south", "west"])[np.arange(len(y)) % 3]
    model = FedPDMClassifier(random_state=0).fit(x, y, groups=hospitals)
    assert model.score(x, y) > LogisticRegression(C=1e4, max_iter=5000).fit(x, y).score(x, y) - 0.02
    assert model.classes_.tolist() == ["benign", "malignant"]
    assert "nothing is guaranteed" in model.guarantee_
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1, atol=1e-6)
    assert model.coef_.shape == (1, x.shape[1])
    assert model.intercept_.shape == (1,)
    scores = x @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(model.decision_function(x), scores[:, 0], atol=1e-3)
    raw = 1000 + x * np.geomspace(0.01, 100, x.shape[1])  # columns of any unit
    np.testing.assert_array_equal(FedPDMClassifier(random_state=0).fit(raw, y, groups=hospitals).predict(raw), model.predict(x))
    shuffled = FedPDMClassifier(random_state=0).fit(x, y, groups=hospitals)
    np.testing.assert_array_equal(shuffled.coef_, model.coef_)


def test_without_noise_and_rounds_it_is_the_central_optimum_with_any_weights():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4)) * [1, 30, 0.1, 5] + [0, 100, 0, 2]
    y = np.where(x[:, 0] + x[:, 1] / 30 - 3.3 + 2 * rng.logistic(size=600) > 3, "rare", "usual")
    owners, weights = rng.choice(5, 600, p=[0.6, 0.2, 0.1, 0.07, 0.03]), rng.integers(1, 4, 600)
    for class_weight in (None, "balanced", {"rare": 5.0}):
        model = FedPDMClassifier(gamma=0.0, class_weight=class_weight, random_state=0)
        model.fit(x, y, groups=owners, sample_weight=weights)
        scaled = StandardScaler().fit_transform(x)
        central = LogisticRegression(C=1e9, tol=1e-10, max_iter=5000, class_weight=class_weight)
        expected = central.fit(scaled, y, sample_weight=weights).predict_proba(scaled)
        np.testing.assert_allclose(model.predict_proba(x), expected, atol=1e-4)


def test_a_budget_gives_a_sentence_and_needs_public_bounds(tumours):
    x, y = tumours
    model = FedPDMClassifier(epsilon=3.0, radius=6.0, classes=["benign", "malignant"], clients=3, averaged=True, random_state=0)
    with pytest.warns(UserWarning, match="an earlier step was fitted on these rows"):
        model.fit(x, y)
    assert "simulation" in model.guarantee_
    assert model.guarantee_.startswith("Differential privacy with epsilon = 3 and delta = 1e-05 for one example of one client")
    assert "noise of this simulation is seeded" in model.guarantee_
    assert "protects nobody" in model.guarantee_
    assert model.score(x, y) > 0.85
    for missing in ("radius", "classes"):
        with pytest.raises(ValueError, match=r"needs radius .* and classes"):
            sklearn.clone(model).set_params(**{missing: None}).fit(x, y)
    with pytest.raises(ValueError, match="none of classes"):
        sklearn.clone(model).set_params(classes=["benign", "other"]).fit(x, y)
    with pytest.raises(ValueError, match="epsilon allows at most 1"):
        sklearn.clone(model).fit(x, y, sample_weight=np.full(len(y), 2.0))
    with pytest.raises(ValueError, match="which epsilon does not cover"):
        sklearn.clone(model).set_params(class_weight="balanced").fit(x, y)


def test_rows_that_were_scaled_by_public_bounds_raise_no_warning(tumours):
    x, y = tumours
    model = FedPDMClassifier(epsilon=3.0, radius=2.0, classes=["benign", "malignant"], clients=3, rounds=2, local_steps=2)
    weights = np.where(np.arange(len(y)) % 2, 1.0, 0.5)
    model.fit((x + 3) / 20, y, sample_weight=weights)  # a warning would be an error
    assert "for one example of one client" in model.guarantee_


def test_weights_are_repeated_rows_and_classes_can_weigh_more(tumours):
    x, y = tumours
    quick = {"rounds": 5, "local_steps": 20, "clients": 3, "random_state": 0}
    weights = np.random.default_rng(0).integers(0, 3, len(y))
    weighted = FedPDMClassifier(**quick).fit(x, y, sample_weight=weights)
    repeated = FedPDMClassifier(**quick).fit(np.repeat(x, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_array_equal(weighted.coef_, repeated.coef_)
    plain = FedPDMClassifier(**quick).fit(x, y)
    heavy = FedPDMClassifier(**quick, class_weight={"malignant": 20.0}).fit(x, y)
    assert (heavy.predict(x) == "malignant").sum() > (plain.predict(x) == "malignant").sum()
    balanced = FedPDMClassifier(**quick, class_weight="balanced").fit(x, y)
    assert not np.array_equal(balanced.coef_, plain.coef_)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": 1.0, "radius": 0.0, "classes": ["benign", "malignant"]}, "needs radius .* above 0"),
        ({"epsilon": 1.0, "radius": float("nan"), "classes": ["benign", "malignant"]}, "needs radius .* above 0"),
        ({"epsilon": -1.0, "radius": 1.0, "classes": ["benign", "malignant"]}, "privacy.epsilon"),
        ({"participants": 11}, "rounds.participants=11"),
        ({"penalty": "lasso"}, "problem.penalty"),
        ({"rounds": 0}, "rounds.total"),
    ],
)
def test_wrong_parameters_are_value_errors_that_name_them(tumours, options, words):
    with pytest.raises(ValueError, match=words):
        FedPDMClassifier(**options).fit(*tumours)


def test_groups_of_another_length_are_refused(tumours):
    x, y = tumours
    with pytest.raises(ValueError, match="one client per row"):
        FedPDMClassifier().fit(x, y, groups=[1, 2, 3])


def test_pipeline_and_search_hand_groups_to_the_clients_and_to_the_folds(tumours):
    x, y = tumours
    hospitals = np.arange(len(y)) % 4
    with sklearn.config_context(enable_metadata_routing=True):
        model = FedPDMClassifier(rounds=5, local_steps=20, random_state=0).set_fit_request(groups=True)
        search = GridSearchCV(
            make_pipeline(StandardScaler(), model), {"fedpdmclassifier__gamma": [0.0, 10.0]}, cv=GroupKFold(2), refit=True
        )
        search.fit(x, y, groups=hospitals)
    assert search.best_params_ == {"fedpdmclassifier__gamma": 0.0}  # a penalty of 10 removes every weight
    assert search.best_score_ > 0.85
    worst = search.cv_results_["mean_test_score"][1]
    assert worst < search.best_score_
