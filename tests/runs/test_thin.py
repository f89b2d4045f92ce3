"""Fewer weights of a finished model: post-processing of the released one, with the number that the settings name."""

import itertools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fedpdm
from fedpdm.config import load_config
from fedpdm.data.standard import Standard
from fedpdm.errors import ConfigError
from fedpdm.problem import custom_model
from fedpdm.problem.prediction import softmax_shares
from fedpdm.runs.folder import read_models
from fedpdm.runs.saved import SavedModel, load_model
from fedpdm.runs.thin import Thinner

NAMES = ("age", "pay near 0", "pay near 1", "sex=f", "sex=m", "bias")
RNG = np.random.default_rng(0)
THREE, TWO = RNG.normal(size=(3, 6)).astype(np.float32), RNG.normal(size=(2, 6)).astype(np.float32)
SETTINGS = [
    "data.name=digits",
    "data.clients=5",
    "rounds.participants=0",
    "rounds.total=4",
    "rounds.all_first=false",
    "local.batch_size=0",
    "local.steps=2",
    "metrics.diagnose_every=0",
    "problem.gamma=0.0",
    "privacy.mechanism=sound",
    "privacy.epsilon=3.0",
]


def thinner(by: str, classes: int) -> Thinner:
    config = load_config("plain", [f"problem.sparsity_by={by}", "problem.sparsity=2"])
    return Thinner(config, NAMES, classes, columns_known=False)


@pytest.mark.parametrize(
    ("by", "total", "count", "weights"),
    [("weight", 18, 7, 7), ("class", 6, 3, 9), ("feature", 5, 2, 9), ("column", 3, 1, 6)],
)
def test_a_model_keeps_what_is_counted_and_its_bias(by, total, count, weights):
    """18 weights, 6 of every class, 5 features, 3 columns; the bias stays, and counts among weights only."""
    own = thinner(by, 3)
    assert own.total == total
    thin = own.thin(THREE, count)
    assert (thin[:, -1] != 0).all()
    used = thin != 0
    if by == "class":
        assert (used.sum(axis=1) == count).all()
    elif by == "feature":
        assert used[:, :-1].any(axis=0).sum() == count
        assert (used[0] == used).all(), "a feature stays for all classes or for none"
    elif by == "column":
        kept = {column for column, group in (("age", [0]), ("pay", [1, 2]), ("sex", [3, 4])) if used[:, group].all()}
        assert len(kept) == 1
        named = {point["kept"]: point["names"] for point in own.points(THREE, lambda model: {})}
        assert set(named[1]) == kept
        assert set(named[3]) == {"age", "pay", "sex"}
        weights = used.sum()
    assert used.sum() == weights


@pytest.mark.parametrize("model", [TWO, THREE])
def test_all_weights_give_the_same_probabilities(model):
    """What all classes' rows have in common is removed first: softmax does not see it."""
    own = thinner("weight", len(model))
    rows = RNG.normal(size=(20, 6)).astype(np.float32)
    same = own.thin(model, own.total)
    np.testing.assert_allclose(softmax_shares.apply(rows @ model.T), softmax_shares.apply(rows @ same.T), atol=1e-5)


def test_weights_that_are_zero_stay_zero():
    """A penalty's zeros are kept, whatever the rows have in common."""
    sparse = np.where(RNG.random(THREE.shape) < 0.4, 0, THREE).astype(np.float32)
    assert not thinner("weight", 3).thin(sparse, 18)[sparse == 0].any()


def test_two_classes_need_one_row():
    thin = thinner("weight", 2).thin(TWO, 6)
    assert not thin[0].any()
    np.testing.assert_allclose(thin[1], TWO[1] - TWO[0], rtol=1e-5)


@pytest.mark.parametrize(("keep", "by"), [(0.05, "weight"), (3, "weight"), (2.5, "weight"), (19, "weight"), (6, "feature")])
def test_a_number_that_no_model_can_have_is_refused(keep, by):
    with pytest.raises(ConfigError, match=r"problem\.sparsity=.* that leaves \d to \d+ "):
        thinner(by, 3).count(keep)


def test_points_of_a_path_shrink_and_name_the_features_that_stay():
    points = thinner("feature", 3).points(THREE, lambda model: {"size": float(np.abs(model).sum())})
    assert [point["kept"] for point in points] == [5, 4, 3, 2, 1]
    for larger, smaller in itertools.pairwise(points):
        assert set(smaller["names"]) < set(larger["names"])
        assert smaller["weights"] < larger["weights"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("thin")


@pytest.fixture(scope="module")
def dense(folder: Path) -> "fedpdm.FinishedRun":
    return fedpdm.train(load_config("plain", [*SETTINGS, "metrics.path=true"]), folder / "dense")


@pytest.fixture(scope="module")
def sparse(folder: Path) -> "fedpdm.FinishedRun":
    return fedpdm.train(load_config("plain", [*SETTINGS, "problem.sparsity=0.2"]), folder / "sparse")


def test_a_private_run_ends_with_that_many_weights_and_nothing_else_changes(dense, sparse):
    """The smaller model is a function of the released one: same messages, same ledger, same guarantee."""
    assert np.count_nonzero(sparse.model) == sparse.summary["kept"] == 130
    assert sparse.summary["nonzero_fraction"] == pytest.approx(0.2)
    assert sparse.rows == dense.rows
    for key in ("epsilon", "guarantee", "uplink_bytes"):
        assert sparse.summary[key] == dense.summary[key]
    own = Thinner(sparse.config, load_model(dense.folder).feature_names, 10)
    np.testing.assert_allclose(own.thin(dense.model, 130), sparse.model, rtol=1e-4, atol=1e-5)


def test_figures_are_those_of_the_model_that_is_kept(dense, sparse):
    """The path of the dense run says what the sparse run measures; its first point is the dense model."""
    path = {point["kept"]: point["test_accuracy"] for point in dense.summary["path"]}
    assert path[650] == dense.summary["test_accuracy"]
    assert path[130] == pytest.approx(sparse.summary["test_accuracy"], abs=0.003)
    assert sparse.summary["metrics"]["accuracy"]["value"] == pytest.approx(sparse.summary["test_accuracy"], abs=1e-6)
    aucs = {point["kept"]: point["auc"] for point in sparse.summary["path"]}
    assert aucs[130] == sparse.summary["metrics"]["auc"]["value"]
    page = (sparse.folder / "report.html").read_text()
    assert f"{aucs[130]:.4f}</td>" in page
    assert "With fewer weights" in page
    assert "130<span" in page


def test_a_path_has_no_point_that_takes_nothing_away():
    """Of 18 weights five are not zero, so numbers from 17 down to 5 would repeat the whole model; the released one stays."""
    model = np.where(np.isin(np.arange(18), [0, 5, 7, 11, 17]).reshape(3, 6), THREE, 0)
    for count, kept in ((None, [18, 4]), (9, [18, 9, 4])):
        assert [point["kept"] for point in thinner("weight", 3).points(model, lambda _: {}, count)] == kept


def test_the_saved_model_can_be_thinned_to_the_same(dense, sparse):
    again = load_model(dense.folder).thinned(130)
    np.testing.assert_allclose(again.weights, sparse.model, rtol=1e-4, atol=1e-5)
    assert np.count_nonzero(load_model(sparse.folder).coefficients()) == 130
    assert np.count_nonzero(read_models(sparse.folder)["averaged_model"]) == 130


def test_a_model_of_standardised_features_is_thinned_in_their_scale():
    """A weight of a feature that hardly varies is small in scores, however large it is."""
    standard = Standard(np.float32([0.5, 0.2, 0.0]), np.float32([0.001, 0.5, 1.0]), bias=True)
    config = load_config("plain", ["data.name=own"])
    weights = np.float32([[9.0, 1.0, 0.5], [-9.0, -1.0, 0.5]])
    saved = SavedModel(weights, ("a", "b"), ("flat", "wide", "bias"), config, None, False, standard=standard)
    thin = saved.thinned(2).weights
    np.testing.assert_allclose(thin, [[0, 0, 0], [0, -2, -2 * (9 * 0.5 + 0.2) + 2 * 0.2]], atol=1e-5)


def test_models_without_a_row_per_class_are_refused_before_training(tmp_path):
    start = {"w": jnp.zeros((65, 10))}
    model = custom_model(lambda p, x, y: jnp.sum((x @ p["w"]) ** 2, axis=1), lambda p, x: x @ p["w"], start)
    config = load_config("plain", [*SETTINGS[:-2], "problem.sparsity=0.2"])
    with pytest.raises(ConfigError, match="are for linear models with"):
        fedpdm.train(config, tmp_path / "run", loss=model.loss)


def test_an_estimator_keeps_that_many_weights():
    features, labels = RNG.uniform(-1, 1, (60, 8)), np.arange(60) % 3
    model = fedpdm.FedPDMClassifier(clients=2, rounds=2, local_steps=2, sparsity=9, random_state=0).fit(features, labels)
    assert np.count_nonzero(model.coef_) + np.count_nonzero(model.intercept_) == 9


def test_as_many_weights_stay_as_noise_cannot_explain(dense, folder):
    """The number comes from sigma, participants and the last rounds, all released or public: nothing else changes."""
    run = fedpdm.train(load_config("plain", [*SETTINGS, "problem.sparsity=noise"]), folder / "certain", report=False)
    doubtful = read_models(dense.folder)["steadiness.noise"][:, :-1] != 0
    assert np.count_nonzero(run.model) == run.summary["kept"] == 10 + (~doubtful).sum()
    assert doubtful.any()
    assert run.rows == dense.rows
    with pytest.raises(ConfigError, match="it needs privacy"):
        load_config("plain", ["problem.sparsity=noise"])
