"""Exactly k coordinates, the right ones, for every way to call the function."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedpdm.compression.sparsify import coordinate_count, random_mask, top_k_mask
from fedpdm.errors import ConfigError

top = jax.jit(top_k_mask, static_argnums=1)


def reference(values, k):
    """The definition: a stable sort by falling magnitude, NaN first."""
    magnitude = np.abs(np.asarray(values, np.float64)).ravel()
    magnitude[np.isnan(magnitude)] = np.inf
    largest = np.isnan(np.asarray(values)).ravel()
    order = np.lexsort((np.arange(magnitude.size), -magnitude, ~largest))
    mask = np.zeros(magnitude.size, bool)
    mask[order[:k]] = True
    return mask.reshape(np.shape(values))


def draws(name, size, seed=0):
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=size)
    values = {
        "normal": normal,
        "cauchy": rng.standard_cauchy(size),
        "few values": rng.integers(-3, 4, size),
        "constant": np.full(size, -2.5),
        "zeros": np.zeros(size) * np.sign(normal),  # of both signs
        "sparse": normal * (rng.random(size) < 0.05),
        "all scales": normal * 10.0 ** rng.integers(-44, 38, size),
        "not finite": np.where(rng.random(size) < 0.2, rng.choice([np.nan, -np.nan, np.inf, -np.inf], size), normal),
        "ascending": np.sort(np.abs(normal)),
    }[name]
    return values.astype(np.float32)


NAMES = ["normal", "cauchy", "few values", "constant", "zeros", "sparse", "all scales", "not finite", "ascending"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("size", "counts"), [(1, [1]), (8, [8]), (17, [9]), (162, [16, 161]), (7850, [785])])
def test_top_k_is_the_head_of_a_stable_sort(name, size, counts):
    values = draws(name, size)
    for k in counts:
        np.testing.assert_array_equal(top(jnp.asarray(values), k), reference(values, k), err_msg=f"k={k}")


hard = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-38, 3e38, np.inf, -np.inf, np.nan]), st.floats(width=32)
)


@settings(deadline=None, max_examples=200)
@given(st.lists(hard, min_size=20, max_size=20), st.sampled_from([1, 7]))
def test_top_k_with_hard_values(values, k):
    array = np.array(values, np.float32)
    np.testing.assert_array_equal(top(jnp.asarray(array), k), reference(array, k))


def test_top_k_of_nans_of_every_kind_goes_by_index():
    bits = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF, 0x7F800000, 0xFF800001], np.uint32)
    np.testing.assert_array_equal(top(jnp.asarray(bits.view(np.float32)), 2), [True, True, False, False, False])


def test_top_k_of_a_large_vector():
    values = draws("normal", 10**6)
    np.testing.assert_array_equal(top(jnp.asarray(values), 10**4), reference(values, 10**4))
    tied = np.round(values, 1)
    np.testing.assert_array_equal(top(jnp.asarray(tied), 10**5), reference(tied, 10**5))


def test_top_k_mapped_is_a_loop_over_rows_that_need_different_work():
    stack = np.stack([draws(name, 500, seed) for seed, name in enumerate(NAMES)]).reshape(-1, 20, 25)
    mapped = jax.jit(jax.vmap(partial(top_k_mask, k=50)))(jnp.asarray(stack))
    assert mapped.shape == stack.shape
    for row, values in zip(mapped, stack, strict=True):
        np.testing.assert_array_equal(row, reference(values, 50))
        np.testing.assert_array_equal(row, top_k_mask(jnp.asarray(values), 50))


@pytest.mark.parametrize(("shape", "k"), [((1,), 1), ((10, 785), 785)])
def test_random_mask_has_exactly_k(shape, k):
    keys = jax.random.split(jax.random.key(3), 20)
    masks = jax.jit(jax.vmap(partial(random_mask, shape=shape, k=k)))(keys)
    assert masks.shape == (20, *shape)
    np.testing.assert_array_equal(masks.reshape(20, -1).sum(1), k)


def test_random_mask_is_uniform_over_sets_and_over_coordinates():
    keys = jax.random.split(jax.random.key(5), 25_200)
    small = np.asarray(jax.jit(jax.vmap(partial(random_mask, shape=(9,), k=4)))(keys))
    sets = np.unique(small @ (1 << np.arange(9)), return_counts=True)[1]
    assert sets.size == 126  # all of C(9,4)
    assert stats.chisquare(sets).pvalue > 1e-4
    np.testing.assert_array_equal(small[7], random_mask(keys[7], (9,), 4))
    large = np.asarray(jax.jit(jax.vmap(partial(random_mask, shape=(162,), k=16)))(keys[:10_000]))
    # Counts of coordinates are correlated through the fixed k, which takes the factor off.
    statistic = np.sum((large.sum(0) - 10_000 * 16 / 162) ** 2) / (10_000 * 16 / 162) / (1 - 16 / 162) * 161 / 162
    assert 1e-4 < stats.chi2.sf(statistic, 161) < 1 - 1e-4


def test_kept_reads_the_ratio_as_the_decimal_that_was_written():
    assert (
        coordinate_count(0.1, 7850),
        coordinate_count(0.29, 100),
        coordinate_count(0.57, 100),
        coordinate_count(0.07, 100),
        coordinate_count(0.3, 10),
    ) == (785, 29, 57, 7, 3)
    assert (
        coordinate_count(1.0, 162),
        coordinate_count(1, 162),
        coordinate_count(1e-9, 162),
        coordinate_count(0.05, 7850),
        coordinate_count(np.float32(0.5), 3),
    ) == (162, 162, 1, 392, 1)
    for percent in range(1, 101):
        for size in (1, 81, 100, 162, 7850, 10**7):
            assert coordinate_count(percent / 100, size) == max(1, percent * size // 100)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coordinate_count(0.0, 5), "ratio=0.0 in"),
        (lambda: coordinate_count(1.1, 5), "ratio=1.1 in"),
        (lambda: coordinate_count(float("nan"), 5), "ratio=nan in"),
        (lambda: coordinate_count(0.5, 0), "size=0"),
        (lambda: top_k_mask(jnp.zeros(3), 0), "k=0 from 1 to the number of coordinates, 3"),
        (lambda: top_k_mask(jnp.zeros((2, 2)), 5), "k=5 from 1 to the number of coordinates, 4"),
        (lambda: random_mask(jax.random.key(0), (3,), 4), "k=4"),
    ],
)
def test_errors_name_the_value_and_the_limit(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("size", [1, 162, 2048])
@pytest.mark.parametrize("switch", ["1", "0"])
def test_many_clients_at_once_choose_what_each_would_choose(monkeypatch, size: int, switch: str) -> None:
    """With and without the kernel of machine code: distinct numbers, ties, few non-zeros, NaN and infinity."""
    monkeypatch.setenv("FEDPDM_NATIVE", switch)
    rng = np.random.default_rng(size)
    values = rng.standard_normal((4, size), np.float32)
    values[1], values[2] = np.round(values[1]), values[2] * (rng.random(size) < 0.05)
    values[3, ::3], values[3, 1::3] = np.nan, -np.inf
    for k in sorted({1, max(1, size // 10), size - size // 3, size}):
        found = jax.jit(jax.vmap(lambda row, k=k: top_k_mask(row, k)))(values)
        np.testing.assert_array_equal(found, [reference(row, k) for row in values])
