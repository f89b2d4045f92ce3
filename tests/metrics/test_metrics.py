"""Metrics agree with scikit-learn's on the same predictions, and intervals cover what they claim to."""

import numpy as np
import pytest
from sklearn import metrics as reference
from sklearn.calibration import calibration_curve

from fedpdm.metrics import choose_threshold, count, counts_of, evaluate, metrics_of_counts, predicted, vector_of
from fedpdm.metrics.intervals import auc, mean_auc, mean_share, share

FIGURES = ("accuracy", "balanced_accuracy", "auc", "log_loss", "brier")


def predictions(classes: int, rows: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, rows, p=np.arange(classes, 0, -1) / np.arange(classes + 1).sum())
    scores = rng.normal(size=(rows, classes)) + 1.3 * np.eye(classes)[labels]
    raised = np.exp(scores.round(1))  # ties
    return raised / raised.sum(axis=1, keepdims=True), labels


@pytest.mark.parametrize("classes", [2, 4])
def test_every_figure_is_scikit_learn_s(classes):
    shares, labels = predictions(classes)
    found = evaluate(shares, labels, list("abcd")[:classes])
    called = shares.argmax(axis=1)
    multi = {} if classes == 2 else {"multi_class": "ovr"}
    expected = {
        "accuracy": reference.accuracy_score(labels, called),
        "balanced_accuracy": reference.balanced_accuracy_score(labels, called),
        "auc": reference.roc_auc_score(labels, shares[:, 1] if classes == 2 else shares, **multi),
        "log_loss": reference.log_loss(labels, shares),
        "brier": reference.brier_score_loss(labels, shares[:, 1] if classes == 2 else shares),
        "majority_rate": np.bincount(labels).max() / len(labels),
    }
    for name, value in expected.items():
        assert found[name]["value"] == pytest.approx(value, abs=1e-6), name
        low, high = found[name]["interval"]
        assert low < value < high
    np.testing.assert_array_equal(found["confusion"], reference.confusion_matrix(labels, called))
    recall, precision = (score(labels, called, average=None) for score in (reference.recall_score, reference.precision_score))
    for k, entry in enumerate(found["classes"]):
        assert entry["recall"]["value"] == pytest.approx(recall[k], abs=1e-6)
        assert entry["precision"]["value"] == pytest.approx(precision[k], abs=1e-6)
        assert entry["auc"]["value"] == pytest.approx(reference.roc_auc_score(labels == k, shares[:, k]), abs=1e-6)
    drawn = found["calibration"][0 if classes == 2 else 1]
    observed, expected_share = calibration_curve(labels == 1, shares[:, 1], n_bins=10)
    np.testing.assert_allclose([point["value"] for point in drawn], observed, atol=1e-6)
    np.testing.assert_allclose([point["predicted"] for point in drawn], expected_share, atol=1e-6)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = {"share": 0, "balanced": 0, "auc": 0}
    draws, truth = 400, 0.76025  # of two normals one standard deviation apart: Phi(1/sqrt 2)
    for _ in range(draws):
        positive = rng.random(120) < 0.3
        scores = rng.normal(size=120) + positive
        area = auc(scores, positive)
        hits["auc"] += area.low <= truth <= area.high
        first, second = share(rng.binomial(60, 0.95), 60), share(rng.binomial(20, 0.6), 20)
        hits["share"] += first.low <= 0.95 <= first.high
        both = mean_share([first, second])
        hits["balanced"] += both.low <= 0.775 <= both.high
    assert all(0.92 <= count / draws <= 0.985 for count in hits.values()), hits


def test_of_two_classes_the_mean_of_both_areas_is_the_one_area():
    shares, labels = predictions(2)
    shares = np.round(64 * shares) / 64  # then ties in one column are ties in the other
    one, both = auc(shares[:, 1], labels == 1), mean_auc(shares, labels)
    assert both.value == pytest.approx(one.value, abs=1e-8)
    assert (both.low, both.high) == pytest.approx((one.low, one.high), abs=1e-5)


def test_what_the_rows_do_not_define_is_none_and_a_perfect_area_keeps_an_interval():
    found = evaluate(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 0]), ["no", "yes"])
    assert found["auc"] == found["balanced_accuracy"] == found["classes"][1]["recall"] == {"value": None, "interval": None}
    perfect = auc(np.arange(20.0), np.arange(20) >= 15)
    assert perfect.value == 1
    assert perfect.low < 0.6


def test_the_threshold_has_the_largest_balanced_accuracy_of_all():
    shares, labels = predictions(2)
    chosen = choose_threshold(shares, labels)
    best = reference.balanced_accuracy_score(labels, predicted(shares, chosen))
    others = [reference.balanced_accuracy_score(labels, predicted(shares, t)) for t in np.linspace(0, 1, 301)]
    assert best >= max(others) - 1e-12
    found = evaluate(shares, labels, ["no", "yes"], chosen)
    assert found["balanced_accuracy"]["value"] == pytest.approx(best)
    assert choose_threshold(shares, np.zeros_like(labels)) is None


@pytest.mark.parametrize("classes", [2, 3])
def test_counts_of_several_nodes_give_nearly_the_same_figures(classes):
    shares, labels = predictions(classes, rows=2000)
    names = list("abc")[:classes]
    exact = evaluate(shares, labels, names)
    parts = [count(shares[own], labels[own]) for own in (slice(0, 700), slice(700, 2000))]
    together = type(parts[0])(*(sum(arrays) for arrays in zip(*parts, strict=True)))
    found = metrics_of_counts(together, names)
    for name in ("accuracy", "balanced_accuracy", "majority_rate"):
        assert found[name] == exact[name]
    assert found["confusion"] == exact["confusion"]
    for name, distance in (("auc", 0.01), ("brier", 0.01), ("log_loss", 0.03)):
        assert found[name]["value"] == pytest.approx(exact[name]["value"], abs=distance)
    wider = metrics_of_counts(together, names, deviation=3.0)
    for name in FIGURES:
        assert wider[name]["interval"][1] >= found[name]["interval"][1]
        low, high = exact[name]["interval"]
        assert found[name]["interval"] == pytest.approx([low, high], abs=0.03)


def test_one_row_moves_the_counts_by_what_their_docstring_says():
    shares, labels = predictions(3, rows=50)
    all_rows, fewer = count(shares, labels), count(shares[1:], labels[1:])
    moved = sum(np.abs(a - b).sum() for a, b in zip(all_rows, fewer, strict=True))
    assert moved == 1 + 3


@pytest.mark.parametrize("classes", [2, 3])
def test_intervals_of_noised_counts_hold_the_noise(classes):
    """Of counts with fresh noise, 95 % intervals have the figures of all rows; without their part for the noise they do not."""
    rng, sigma, names = np.random.default_rng(3), 15.0, list("abc")[:classes]
    exact = evaluate(*predictions(classes, rows=40_000), names)
    truth = {name: exact[name]["value"] for name in FIGURES}
    inside, without = dict.fromkeys(FIGURES, 0), dict.fromkeys(FIGURES, 0)
    for trial in range(60):
        vector = vector_of(count(*predictions(classes, rows=900 if classes == 2 else 4000, seed=trial + 1)))
        counts = counts_of(vector + sigma * rng.normal(size=vector.size), classes, 20)
        for hits, deviation in ((inside, sigma), (without, 1e-9)):
            found = metrics_of_counts(counts, names, deviation)
            for name in FIGURES:
                low, high = found[name]["interval"]
                hits[name] += low - 0.005 <= truth[name] <= high + 0.005  # the bins' width
    assert min(inside.values()) >= 50, inside
    assert min(without.values()) < 45, without


def test_what_the_noise_hides_has_no_value():
    shares, labels = predictions(2, rows=40)
    found = metrics_of_counts(count(shares, labels), ["no", "yes"], deviation=30.0)
    assert found["auc"] == {"value": None, "interval": None}
    assert found["calibration"] == [[]]


def test_a_figure_that_noise_alone_moves_far_has_an_interval_alone():
    """300 rows in forty cells with noise of 17 each: an AUC of 1 or a log loss of 0 would be noise that was cut."""
    rng, names = np.random.default_rng(0), ["no", "yes"]
    vector = vector_of(count(*predictions(2, rows=300)))
    drawn = [metrics_of_counts(counts_of(vector + 17 * rng.normal(size=vector.size), 2, 20), names, 17.0) for _ in range(10)]
    assert all(found["auc"]["value"] is None and found["log_loss"]["value"] is None for found in drawn)
    assert all(found["log_loss"]["interval"] is not None for found in drawn)
    assert all(found["accuracy"]["value"] is not None for found in drawn), "four cells tell a share that forty do not"
    sharp = metrics_of_counts(counts_of(vector + 0.5 * rng.normal(size=vector.size), 2, 20), names, 0.5)
    assert sharp["auc"]["value"] == pytest.approx(evaluate(*predictions(2, rows=300), names)["auc"]["value"], abs=0.05)


def test_intervals_over_persons_cover_where_those_over_rows_do_not():
    """Persons with eight rows each, all alike: 95 % intervals over rows miss the truth often."""
    inside, over_rows = dict.fromkeys(FIGURES, 0), dict.fromkeys(FIGURES, 0)
    exact = evaluate(*predictions(2, rows=60_000), ["no", "yes"])
    for trial in range(60):
        shares, labels = (np.repeat(part, 8, axis=0) for part in predictions(2, rows=120, seed=trial + 1))
        units = np.repeat(np.arange(120), 8)
        for hits, known in ((inside, units), (over_rows, None)):
            found = evaluate(shares, labels, ["no", "yes"], units=known)
            for name in FIGURES:
                low, high = found[name]["interval"]
                hits[name] += low <= exact[name]["value"] <= high
    assert min(inside.values()) >= 50, inside
    assert max(over_rows.values()) < 45, over_rows
