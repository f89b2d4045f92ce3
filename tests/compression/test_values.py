"""The simulated values are those that arrive, bit by bit, and they are as close as promised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpdm.compression import values as module
from fedpdm.compression.refusal import WireError
from fedpdm.compression.values import KINDS, chosen_kind, pack_values, packed_length, rounded, unpack_values
from fedpdm.errors import ConfigError, DivergedError

simulate = jax.jit(rounded, static_argnums=2)
LARGEST = float(np.finfo(np.float32).max)
finite = arrays(np.float32, 12, elements=st.floats(-LARGEST, LARGEST, width=32))
moderate = arrays(np.float32, 12, elements=st.floats(-1000, 1000, width=32))


def round_trip(values, kind):
    return unpack_values(pack_values(values, kind), values.size, kind)


def same_bits(ours, theirs):
    np.testing.assert_array_equal(np.asarray(ours).view(np.int32), np.asarray(theirs).view(np.int32))


@settings(deadline=None, max_examples=300)
@given(finite, st.integers(0, 2**12 - 1), st.sampled_from(list(KINDS)))
def test_simulated_values_are_the_real_ones_in_every_bit(values, chosen, kind):
    mask = (chosen >> np.arange(12) & 1).astype(bool)
    arrived, size = simulate(jnp.asarray(values), jnp.asarray(mask), kind, 0.0)
    assert size == KINDS[kind]
    assert not np.any(arrived[~mask])
    same_bits(arrived[mask], round_trip(values[mask], kind))


@pytest.mark.parametrize("kind", list(KINDS))
def test_simulated_values_are_the_real_ones_at_every_scale(kind):
    rng = np.random.default_rng(0)
    for scale in 10.0 ** np.arange(-46, 39, 1.0):
        values = np.clip(rng.normal(size=3000) * scale, -LARGEST, LARGEST).astype(np.float32)
        arrived, _ = simulate(jnp.asarray(values), jnp.ones(3000, bool), kind, 0.0)
        same_bits(arrived, round_trip(values, kind))


@pytest.mark.parametrize("start", range(0, 2**16, 2**14))
def test_float16_agrees_around_every_float16_number(start):
    exact = np.arange(start, start + 2**14).astype(np.uint16).view(np.float16).astype(np.float32)
    exact = exact[np.isfinite(exact)]
    between = exact[:-1] + (exact[1:] - exact[:-1]) / 2
    values = np.concatenate([exact, between, np.nextafter(between, np.inf), np.nextafter(between, -np.inf)], dtype=np.float32)
    arrived, _ = simulate(jnp.asarray(values), jnp.ones(values.size, bool), "float16", 0.0)
    same_bits(arrived, round_trip(values, "float16"))
    same_bits(arrived[: exact.size], exact)


@settings(deadline=None)
@given(finite, st.sampled_from(list(KINDS)))
def test_what_arrived_is_sent_unchanged_again(values, kind):
    packed = pack_values(values, kind)
    assert len(packed) == packed_length(12, kind)
    assert pack_values(unpack_values(packed, 12, kind), kind) == packed


def test_int8_is_sent_unchanged_again_whatever_the_largest_magnitude():
    """With all 24 bits in the step, about one magnitude in 130 would come back with another step."""
    for largest in np.random.default_rng(9).uniform(1, 2, 3000).astype(np.float32):
        packed = pack_values(np.array([largest, -largest / 3], np.float32), "int8")
        arrived = unpack_values(packed, 2, "int8")
        assert pack_values(arrived, "int8") == packed
        assert float(arrived[0]) == 127 * float(np.frombuffer(packed, "<f4", 1)[0])  # exactly


@settings(deadline=None)
@given(moderate)
def test_errors_stay_within_the_step(values):
    largest = float(np.abs(values).max())
    tiny = 2.0**-110 * 127
    assert np.abs(round_trip(values, "int8") - values).max() <= largest / 127 * 0.5 * 1.002 + tiny
    assert np.abs(round_trip(values, "float16") - values).max() <= max(largest * 2.0**-11, 2.0**-25)
    same_bits(round_trip(values, "float32"), values)


def test_float16_saturates_and_nothing_becomes_infinite():
    values = np.array([1e6, -1e6, 65504, 65519.9, 65520, LARGEST, 1.0], np.float32)
    np.testing.assert_array_equal(round_trip(values, "float16"), [65504, -65504, 65504, 65504, 65504, 65504, 1])
    assert np.all(np.isfinite(round_trip(values, "int8")))
    assert np.all(np.isfinite(simulate(jnp.asarray(values), jnp.ones(7, bool), "int8", 0.0)[0]))


@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1.1754942e-38, 1e-36, 2.0**-104, 2.0**-103, 2.0**-102])
def test_int8_of_next_to_nothing(tiny):
    values = np.array([tiny, -tiny, 0.0, -0.0], np.float32)
    arrived, _ = simulate(jnp.asarray(values), jnp.ones(4, bool), "int8", 0.0)
    same_bits(arrived, round_trip(values, "int8"))
    assert np.all((arrived == 0) | (np.abs(arrived / max(tiny, 1e-44) - np.sign(values)) < 1e-4))
    if tiny < 1e-36:
        assert pack_values(values, "int8") == bytes(8)


def test_values_that_are_not_finite_are_seen_by_the_simulation_and_never_sent():
    for kind in KINDS:
        for wrong in (np.nan, np.inf, -np.inf):
            values = jnp.array([1.0, wrong, 2.0])
            arrived, _ = simulate(values, jnp.array([True, True, False]), kind, 0.0)
            assert not np.all(np.isfinite(arrived))
            assert np.all(np.isfinite(simulate(values, jnp.array([True, False, True]), kind, 0.0)[0]))
            with pytest.raises(DivergedError, match="found NaN or infinity"):
                pack_values(np.asarray(values), kind)
    assert int(simulate(jnp.array([jnp.nan]), jnp.ones(1, bool), "auto", 1.0)[1]) == 4


@pytest.mark.parametrize(
    ("largest", "noise", "kind"),
    [
        (1.0, 0.0, "float32"),
        (1.0, -1.0, "float32"),
        (1.0, 2 / 127 * 1.001, "int8"),
        (1.0, 2 / 127 * 0.999, "float16"),
        (1.0, 2.0**-9, "float16"),
        (1.0, 2.0**-9 * 0.999, "float32"),
        (65504.0, 200.0, "float16"),
        (65505.0, 200.0, "float32"),
        (1e6, 1e6, "int8"),
        (1e-7, 1e-8, "int8"),
        (1e-6, 1.2e-8, "float32"),  # float16 has no such small steps
        (1e-6, 1.3e-7, "int8"),
        (3e-5, 1.3e-7, "float16"),
        (LARGEST, LARGEST, "float32"),  # int8 would saturate
        (0.0, 1.0, "int8"),
        (0.0, 0.0, "float32"),
    ],
)
def test_auto_takes_the_coarsest_kind_that_the_noise_hides(largest, noise, kind):
    values = np.array([[largest, -largest / 3, 123.0 * largest]], np.float32) if largest < 1e30 else np.full((1, 3), LARGEST)
    mask = jnp.array([[True, True, False]])
    arrived, size = simulate(jnp.asarray(values, jnp.float32), mask, "auto", noise)
    assert int(size) == KINDS[kind]
    assert chosen_kind(values[0, :2], noise) == kind
    same_bits(arrived, simulate(jnp.asarray(values, jnp.float32), mask, kind, noise)[0])


def test_auto_adds_two_percent_of_variance_at_most():
    rng = np.random.default_rng(1)
    for spread in (0.0, 5.0, 31.0, 500.0):
        noise = rng.normal(size=200_000)
        values = (noise + spread * np.sign(noise)).astype(np.float32)
        arrived, size = simulate(jnp.asarray(values), jnp.ones(values.size, bool), "auto", 1.0)
        error = np.asarray(arrived, np.float64) - values
        assert np.mean(error**2) <= 0.0215, (spread, int(size))


def test_mapped_is_a_loop():
    rng = np.random.default_rng(2)
    values = (rng.normal(size=(6, 4, 5)) * 10.0 ** np.arange(-3, 3)[:, None, None]).astype(np.float32)
    mask = rng.random(values.shape) < 0.5
    noise = jnp.array([0.0, 1.0, 1e-3, 1e-2, 1.0, 1e-1])
    for kind in [*KINDS, "auto"]:
        arrived, sizes = jax.vmap(lambda *row, kind=kind: rounded(row[0], row[1], kind, row[2]))(values, mask, noise)
        for i in range(6):
            alone, size = rounded(jnp.asarray(values[i]), jnp.asarray(mask[i]), kind, noise[i])
            same_bits(arrived[i], alone)
            assert sizes[i] == size
    assert set(sizes.tolist()) == {1, 2, 4}


INT8 = pack_values(np.array([1.0, -0.5, 0.25], np.float32), "int8")


def with_step(step, codes=INT8[4:]):
    return np.float32(step).astype("<f4").tobytes() + codes


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (INT8[:-1], "int8", "length"),
        (INT8 + b"\0", "int8", "length"),
        (with_step(np.nan), "int8", "not-a-number"),
        (with_step(np.inf), "int8", "infinity"),
        (with_step(3e38), "int8", "infinity"),
        (with_step(-0.125), "int8", "kind"),
        (with_step(-0.0), "int8", "kind"),
        (with_step(0.0), "int8", "kind"),  # codes that mean nothing
        (with_step(0.1), "int8", "kind"),  # more than 17 bits
        (with_step(2.0**-111), "int8", "kind"),
        (with_step(2.0**122, b"\x7f\0\0"), "int8", "infinity"),
        (with_step(2.0**120 * 1.0078125, b"\x7f\0\0"), "int8", "kind"),
        (with_step(0.125, b"\x80\x7f\0"), "int8", "kind"),  # -128
        (with_step(0.125, b"\x7e\x01\0"), "int8", "kind"),  # no 127
        (np.array([1, np.nan, 2], "<f4").tobytes(), "float32", "not-a-number"),
        (np.array([1, -np.inf, 2], "<f4").tobytes(), "float32", "infinity"),
        (np.array([1, np.nan, 2], "<f2").tobytes(), "float16", "not-a-number"),
        (np.array([1, np.inf, 2], "<f2").tobytes(), "float16", "infinity"),
        (bytes(11), "float32", "length"),
    ],
)
def test_bytes_that_packing_never_makes_are_refused(data, kind, reason):
    with pytest.raises(WireError) as caught:
        unpack_values(data, 3, kind)
    assert caught.value.reason == reason


def test_int8_accepts_its_own_extremes():
    assert unpack_values(with_step(2.0**-110, b"\x7f\0\0"), 3, "int8")[0] == module._SMALLEST_STEP * 127
    assert unpack_values(with_step(2.0**120, b"\x81\0\0"), 3, "int8")[0] == module._LARGEST_STEP * -127
    np.testing.assert_array_equal(unpack_values(with_step(0.125), 3, "int8"), [15.875, -8.0, 4.0])


def test_unknown_kinds():
    with pytest.raises(ConfigError, match="kind='int4' to be one of float32, float16, int8, auto"):
        rounded(jnp.zeros(2), jnp.ones(2, bool), "int4", 0.0)
    with pytest.raises(ConfigError, match="kind='auto' to be one of float32, float16, int8: see `chosen_kind`"):
        pack_values(np.zeros(2, np.float32), "auto")
