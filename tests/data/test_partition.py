"""Partitions: every example exactly once, and the further promises of each partition."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedpdm.choices import PARTITIONS
from fedpdm.data import dirichlet, iid, labels_per_client, load_dataset, one_class_per_client
from fedpdm.errors import ConfigError, DataError, UserError

MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
seeds = st.integers(0, 2**32 - 1)
class_counts = st.lists(st.integers(1, 60), min_size=1, max_size=8)


def labels_of(counts: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


def assert_each_once(parts: list[np.ndarray], labels: np.ndarray, clients: int) -> None:
    assert len(parts) == clients
    assert all(len(part) for part in parts)
    assert (np.sort(np.concatenate(parts)) == np.arange(len(labels))).all()


def sizes_of(parts: list[np.ndarray]) -> list[int]:
    return [len(part) for part in parts]


@pytest.mark.parametrize("seed", range(5))
def test_mnist_has_600_examples_of_four_labels_each(seed: int) -> None:
    labels = labels_of(MNIST_COUNTS)
    parts = labels_per_client(labels, 100, 4, seed)
    assert_each_once(parts, labels, 100)
    assert set(sizes_of(parts)) == {600}
    counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
    assert (np.count_nonzero(counts, axis=1) == 4).all()
    # the label sets are mixed, and no client's share of a label is a token one
    assert len({tuple(np.flatnonzero(row)) for row in counts}) > 50
    assert counts[counts > 0].min() > 100


def test_adult_has_76_and_24_clients() -> None:
    labels = load_dataset("adult", progress=False).labels
    parts = one_class_per_client(labels, 100, seed=3)
    assert_each_once(parts, labels, 100)
    assert [labels[part[0]] for part in parts] == [0] * 76 + [1] * 24
    assert set(sizes_of(parts[:76])) == {325, 326}
    assert set(sizes_of(parts[76:])) == {326, 327}


@settings(deadline=None, max_examples=150)
@given(class_counts, st.integers(1, 12), st.integers(1, 8), seeds)
def test_labels_per_client_is_exact_for_any_counts(counts: list[int], clients: int, held: int, seed: int) -> None:
    labels = labels_of(counts)
    assume(clients <= len(labels))
    try:
        parts = labels_per_client(labels, clients, held, seed)
    except ConfigError:
        pairs = sum(min(count, clients) for count in counts)
        assert held > len(counts) or clients * held < len(counts) or clients * held > pairs
        return
    assert_each_once(parts, labels, clients)
    assert all(len(np.unique(labels[part])) == held for part in parts)


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 8), st.data())
def test_labels_per_client_sizes_are_equal_for_near_equal_classes(classes: int, data: st.DataObject) -> None:
    held = data.draw(st.integers(2, classes))
    clients = data.draw(st.integers(classes, 30))
    counts = [clients * 10 + data.draw(st.integers(0, clients)) for _ in range(classes)]
    labels = labels_of(counts)
    parts = labels_per_client(labels, clients, held, data.draw(seeds))
    assert_each_once(parts, labels, clients)
    assert np.ptp(sizes_of(parts)) <= 1


def test_labels_per_client_with_very_unequal_classes() -> None:
    labels = labels_of([5000, 200, 50, 3])
    parts = labels_per_client(labels, 20, 2, seed=0)
    assert_each_once(parts, labels, 20)
    assert all(len(np.unique(labels[part])) == 2 for part in parts)


@settings(deadline=None, max_examples=100)
@given(class_counts, st.integers(1, 40), seeds)
def test_one_class_per_client(counts: list[int], clients: int, seed: int) -> None:
    labels = labels_of(counts)
    assume(len(counts) <= clients <= len(labels))
    parts = one_class_per_client(labels, clients, seed)
    assert_each_once(parts, labels, clients)
    for label in range(len(counts)):
        sizes = [len(part) for part in parts if labels[part[0]] == label]
        assert np.ptp(sizes) <= 1
    assert all(len(np.unique(labels[part])) == 1 for part in parts)


@settings(deadline=None, max_examples=100)
@given(class_counts, st.integers(1, 20), st.floats(1e-3, 1e6), st.integers(1, 5), seeds)
def test_dirichlet(counts: list[int], clients: int, alpha: float, minimum: int, seed: int) -> None:
    labels = labels_of(counts)
    assume(clients * minimum <= len(labels))
    parts = dirichlet(labels, clients, alpha, seed, minimum)
    assert_each_once(parts, labels, clients)
    assert min(sizes_of(parts)) >= minimum


def test_dirichlet_is_ragged_for_small_and_even_for_large_alpha() -> None:
    labels = labels_of([1000] * 10)
    ragged, even = (np.std(sizes_of(dirichlet(labels, 20, alpha, seed=1))) for alpha in (0.1, 1e4))
    assert ragged > 100 > 10 > even


@settings(deadline=None, max_examples=50)
@given(class_counts, st.integers(1, 40), seeds)
def test_iid(counts: list[int], clients: int, seed: int) -> None:
    labels = labels_of(counts)
    assume(clients <= len(labels))
    parts = iid(labels, clients, seed)
    assert_each_once(parts, labels, clients)
    assert np.ptp(sizes_of(parts)) <= 1


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_seed_alone_decides(name: str) -> None:
    labels = labels_of([100, 120, 90, 110, 80])
    first, again, other = (PARTITIONS[name].factory()(labels, 10, seed=seed) for seed in (1, 1, 2))
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    assert any(len(one) != len(two) or (one != two).any() for one, two in zip(first, other, strict=True))
    by_generator = PARTITIONS[name].factory()(labels, 10, seed=np.random.default_rng(1))
    assert all((one == two).all() for one, two in zip(first, by_generator, strict=True))


@pytest.mark.parametrize("name", PARTITIONS)
def test_labels_need_not_be_consecutive(name: str) -> None:
    labels = labels_of([50, 60, 40, 45]) * 3 + 2
    assert_each_once(PARTITIONS[name].factory()(labels, 8, seed=0), labels, 8)


@pytest.mark.parametrize("name", PARTITIONS)
def test_more_clients_than_examples(name: str) -> None:
    with pytest.raises(DataError, match="11 clients cannot share 10 examples; give at most 10"):
        PARTITIONS[name].factory()(labels_of([5, 5]), 11, seed=0)
    with pytest.raises(ConfigError, match="clients is 0"):
        PARTITIONS[name].factory()(labels_of([5, 5]), 0, seed=0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda y: labels_per_client(y, 4, 4), "labels per client is 4, but the data has 3 labels"),
        (lambda y: labels_per_client(y, 4, 0), "labels per client is 0"),
        (lambda y: labels_per_client(y, 2, 1), "2 clients with 1 labels each cannot hold all 3 labels"),
        (lambda y: labels_per_client(y, 20, 3), "need 60 different .* pairs"),
        (lambda y: one_class_per_client(y, 2), "2 clients with one class each cannot hold 3 classes"),
        (lambda y: dirichlet(y, 4, 0.0), r"alpha is 0\.0"),
        (lambda y: dirichlet(y, 4, float("nan")), "alpha is nan"),
        (lambda y: dirichlet(y, 4, 1.0, minimum=9), r"must lie in \[1, 7\]"),
        (lambda y: dirichlet(y, 4, 1.0, minimum=0), r"must lie in \[1, 7\]"),
    ],
)
def test_settings_that_cannot_be(call: object, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        call(labels_of([10, 10, 10]))  # type: ignore[operator]
    assert "\n" not in str(caught.value)
