"""A message has exactly the computed length, arrives as it was sent, and only messages are accepted."""

import math
import pickle
import struct
import tracemalloc
import typing
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpdm.compression import indices as coding
from fedpdm.compression import wire
from fedpdm.compression.indices import BITMAP, DENSE, PACKED, RICE, SHARED, encode_indices, entropy_bits, rice_parameter
from fedpdm.compression.refusal import Reason
from fedpdm.compression.sizes import index_bytes, message_bytes
from fedpdm.compression.values import KINDS, pack_values, rounded, unpack_values
from fedpdm.compression.wire import HEADER_BYTES, Part, WireError, decode, encode, make_part, spread
from fedpdm.errors import ConfigError, DivergedError

REASONS = set(typing.get_args(Reason))
simulated_bytes = jax.jit(message_bytes, static_argnums=2)


def support_of(dimension, count, seed=0):
    return np.sort(np.random.default_rng(seed).choice(dimension, count, replace=False))


def part_of(dimension, count, seed=0, scale=1.0):
    values = scale * np.random.default_rng(seed + 1).normal(size=count)
    return Part(dimension, support_of(dimension, count, seed), values.astype(np.float32))


def receive(data, dimension, support=None, limit=math.inf):
    return decode(data, dimensions=[dimension], supports=[support], limit=limit)[0]


masks = st.one_of(
    st.lists(st.booleans(), min_size=1, max_size=200),
    st.builds(lambda d, i: [j == i % d for j in range(d)], st.integers(1, 300), st.integers(0, 299)),
    st.builds(lambda d, i: [j != i % d for j in range(d)], st.integers(2, 300), st.integers(0, 299)),
    st.builds(lambda a, b, c: [False] * a + [True] * b + [False] * c, *[st.integers(0, 200)] * 3),
    st.builds(lambda step, count: ([True] + [False] * step) * count, st.integers(0, 40), st.integers(1, 30)),
).filter(any)


@settings(deadline=None, max_examples=300)
@given(masks, st.sampled_from(list(KINDS)), st.booleans(), st.integers(0, 2**32 - 1))
def test_what_is_sent_arrives(flags, kind, shared, seed):
    mask = np.array(flags)
    vector = np.random.default_rng(seed).normal(size=mask.size).astype(np.float32)
    support = np.flatnonzero(mask) if shared else None
    data = encode([make_part(vector, mask, shared=shared)], kind)
    part = receive(data, mask.size, support)
    assert encode([part]) == data
    values, arrived = spread(part, support)
    np.testing.assert_array_equal(arrived, mask)
    np.testing.assert_array_equal(values[mask], unpack_values(pack_values(vector[mask], kind), int(mask.sum()), kind))
    assert not np.any(values[~mask])
    # The parts' own length, and 4 + 4 + 1 bytes at most around it.
    assert len(data) <= HEADER_BYTES + 9 + (mask.size + 7) // 8 + len(pack_values(vector[mask], kind))


def test_simulation_and_wire_tell_the_same_story():
    rng = np.random.default_rng(3)
    vector, mask = rng.normal(size=(10, 785)).astype(np.float32), rng.random((10, 785)) < 0.1
    for kind in KINDS:
        arrived, size = rounded(jnp.asarray(vector), jnp.asarray(mask), kind, 0.0)
        data = encode([make_part(vector, mask)], kind)
        np.testing.assert_array_equal(spread(receive(data, 7850))[0].reshape(10, 785), arrived)
        assert len(data) == simulated_bytes(jnp.asarray(mask), size, False)


@pytest.mark.parametrize("dimension", [1, 2, 33, 128, 162, 2000])
def test_simulated_length_is_the_real_one(dimension):
    rng = np.random.default_rng(dimension)
    position = np.arange(dimension)
    stack = [rng.random(dimension) < p for p in (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.36, 0.39, 0.5, 0.7, 0.9, 0.99) * 4]
    stack += [position == i for i in (0, dimension // 2, dimension - 1)]
    stack += [position != i for i in (0, dimension // 2, dimension - 1)]
    stack += [position < n for n in (1, dimension // 3, dimension)] + [position >= dimension - n for n in (1, dimension // 3)]
    stack += [position % step == step - 1 for step in (2, 3, 5, 17, 64)]
    stack = np.array([mask for mask in stack if mask.any()])
    mapped = jax.jit(jax.vmap(message_bytes, (0, None, None)), static_argnums=2)
    for kind, each in KINDS.items():
        for shared in (False, True):
            sizes = mapped(jnp.asarray(stack), each, shared)
            real = [len(encode([make_part(np.ones(dimension), mask, shared=shared)], kind)) for mask in stack]
            np.testing.assert_array_equal(sizes, real)


def test_simulated_length_of_large_vectors():
    for count in (1, 50_000, 10**6 - 3):
        part = part_of(10**6, count)
        mask = jnp.asarray(spread(part)[1])
        assert simulated_bytes(mask, 2, False) == len(encode([part], "float16"))


def test_lengths_do_not_overflow_int32_at_1e8_coordinates():
    for rare in (1, 10**3, 10**6, 34 * 10**6, 5 * 10**7):
        largest_quotients = (10**8 - rare) >> rice_parameter(10**8, rare)
        exact = coding.code_lengths(10**8, rare, largest_quotients)
        traced = coding.code_lengths(10**8, jnp.int32(rare), jnp.int32(largest_quotients))
        assert exact == tuple(int(length) for length in traced)
        assert rice_parameter(10**8, rare) == int(rice_parameter(10**8, jnp.int32(rare)))
        assert exact[1] == math.ceil(rare * 27 / 8)


def test_several_vectors_in_one_message():
    dense, support = Part(162, None, np.arange(162, dtype=np.float32)), np.array([3, 5, 90, 161])
    own = [part_of(162, 16)._replace(kind="int8"), part_of(162, 16, seed=4), dense]
    data = encode([*own, Part(162, None, np.ones(4, np.float32), shared=True)], "float16")
    arrived = decode(data, dimensions=[162] * 4, supports=[None, None, None, support], limit=math.inf)
    assert [part.kind for part in arrived] == ["int8", "float16", "float16", "float16"]
    assert encode(arrived) == data
    masks = jnp.asarray([spread(part, support)[1] for part in arrived])
    sizes = [int(simulated_bytes(masks[i], 1 if i == 0 else 2, i == 3)) for i in range(4)]
    assert len(data) == sum(sizes) - 3 * HEADER_BYTES


@pytest.mark.parametrize("dimension", [162, 7850, 10**6])
@pytest.mark.parametrize("ratio", [0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9])
def test_random_indices_take_at_most_15_percent_more_than_the_lower_bound(dimension, ratio):
    """Whole bytes, on average over random sets; at d=162 the bytes themselves take up to 11 %."""
    count = max(1, math.floor(ratio * dimension))
    repeats = 50 if dimension < 10**6 else 1
    bits = [8 * len(encode_indices(support_of(dimension, count, seed), dimension)[1]) for seed in range(repeats)]
    assert np.mean(bits) <= 1.15 * entropy_bits(dimension, count)


def test_entropy_is_the_logarithm_of_the_number_of_sets():
    for dimension, count in ((1, 1), (10, 3), (162, 16), (7850, 785)):
        assert entropy_bits(dimension, count) == pytest.approx(math.log2(math.comb(dimension, count)), abs=1e-9, rel=1e-9)


def test_rice_parameter_is_the_best_one_but_at_the_edges():
    for rare in (1, 10, 78, 392, 785, 1570, 2355, 3140, 3925):
        q = 1 - rare / 7850
        expected = [1 + r + q ** (2**r) / (1 - q ** (2**r)) for r in range(14)]
        assert expected[rice_parameter(7850, rare)] <= 1.01 * min(expected)


def test_every_coding_has_its_use():
    sent = {
        DENSE: make_part(np.ones(100), np.ones(100, bool)),
        SHARED: Part(100, None, np.ones(10, np.float32), shared=True),
        BITMAP: make_part(np.ones(46), np.arange(46) % 3 == 2),  # a third is set, all gaps even: the worst for rice
        PACKED: Part(100, np.array([99]), np.ones(1, np.float32)),
        RICE: part_of(100, 10),
    }
    assert {expected: encode([part])[HEADER_BYTES + 2] for expected, part in sent.items()} == {key: key for key in sent}


def sealed(payload, vectors=1):
    return wire._seal(vectors, bytes(payload))


def numbers(*values):
    return b"".join(wire._number(value) for value in values)


ONES = np.ones(8, "<f4").tobytes()
GOOD = encode([part_of(100, 10)])


def from_bits(bits):
    return np.packbits([int(bit) for bit in bits.replace(" ", "")]).tobytes()


def with_checksum(data):
    return data[:8] + struct.pack("<I", zlib.crc32(data[12:], zlib.crc32(data[:8]))) + data[12:]


REFUSED = [
    ("length", b""),
    ("length", GOOD[:11]),
    ("length", GOOD[:-1]),
    ("length", GOOD + b"\0"),
    ("magic", b"FP" + GOOD[2:]),
    ("version", GOOD[:2] + b"\2" + GOOD[3:]),
    ("checksum", GOOD[:-1] + bytes([GOOD[-1] ^ 1])),
    ("checksum", GOOD[:3] + b"\2" + GOOD[4:]),
    ("vectors", with_checksum(GOOD[:3] + b"\2" + GOOD[4:])),
    ("vectors", with_checksum(GOOD[:3] + b"\0" + GOOD[4:])),
    ("length", sealed(GOOD[12:] + b"\0")),
    ("length", sealed(GOOD[12:-1])),
    ("length", sealed(b"")),
    ("dimension", sealed(numbers(101, 10) + GOOD[14:])),
    ("dimension", sealed(b"\xe4\0" + GOOD[13:])),  # 100 in two bytes
    ("dimension", sealed(b"\xff" * 6)),
    ("dimension", sealed(b"\xff\xff\xff\xff\x7f" + GOOD[13:])),
    ("count", sealed(numbers(100, 101, 0))),
    ("count", sealed(numbers(100, 0, 0))),
    ("count", sealed(b"\x64\x8a\0" + GOOD[14:])),
    ("count", sealed(numbers(100, 8) + bytes([DENSE]) + ONES)),
    ("length", sealed(numbers(100, 9) + bytes([DENSE]) + ONES)),
    ("coding", sealed(numbers(100, 8) + bytes([5]) + ONES)),
    ("coding", sealed(numbers(100, 8) + bytes([SHARED]) + ONES)),
    ("coding", sealed(numbers(100, 100) + bytes([BITMAP]) + bytes([255] * 12 + [240]) + np.ones(100, "<f4").tobytes())),
    ("coding", sealed(numbers(100, 8) + bytes([BITMAP]) + bytes([255] + [0] * 12) + ONES)),  # rice is shorter
    ("coding", sealed(numbers(100, 1) + bytes([RICE]) + from_bits("1 000001") + ONES[:4])),  # packed is no longer
    ("kind", sealed(numbers(100, 8) + bytes([DENSE + 8 * 3]) + ONES)),
    ("kind", sealed(numbers(100, 8) + bytes([DENSE + 8 * 31]) + ONES)),
    ("kind", sealed(numbers(100, 2) + bytes([PACKED + 8 * 2]) + from_bits("0000001 1000000") + b"\0\0\0\x3e\x80\x7f")),
    ("index", sealed(numbers(100, 8) + bytes([BITMAP]) + bytes([127] + [0] * 12) + ONES)),
    ("index", sealed(numbers(100, 1) + bytes([PACKED]) + from_bits("1100100") + ONES[:4])),  # 100
    ("index", sealed(numbers(100, 1) + bytes([PACKED]) + from_bits("0000001 1") + ONES[:4])),  # a bit too many
    ("index", sealed(numbers(100, 2) + bytes([PACKED]) + from_bits("0000011 0000010") + ONES[:8])),  # falling
    ("index", sealed(numbers(100, 2) + bytes([PACKED]) + from_bits("0000011 0000011") + ONES[:8])),  # twice
    ("index", sealed(numbers(100, 8) + bytes([RICE]) + bytes(20) + b"\1" * 12)),  # no ends of codes
    ("index", sealed(numbers(100, 8) + bytes([RICE]) + from_bits("0000000000000001") + bytes([255] * 4) + ONES)),
    ("length", sealed(numbers(100, 8) + bytes([RICE + 8 * 2]) + b"\xff" * 12)),
    ("magnitude", sealed(numbers(100, 1) + bytes([PACKED]) + from_bits("0000001") + np.float32(1001).tobytes())),
    ("not-a-number", sealed(numbers(100, 1) + bytes([PACKED]) + from_bits("0000001") + np.float32(np.nan).tobytes())),
    ("infinity", sealed(numbers(100, 1) + bytes([PACKED]) + from_bits("0000001") + np.float32(-np.inf).tobytes())),
]


@pytest.mark.parametrize(("reason", "data"), REFUSED, ids=[f"{i}-{reason}" for i, (reason, _) in enumerate(REFUSED)])
def test_refused_by_name(reason, data):
    with pytest.raises(WireError) as caught:
        receive(data, 100, limit=1000.0)
    assert caught.value.reason == reason
    assert str(caught.value).startswith("Expected")
    assert pickle.loads(pickle.dumps(caught.value)).reason == reason


def test_every_reason_is_covered_and_its_good_neighbour_accepted():
    assert {reason for reason, _ in REFUSED} == REASONS
    assert receive(GOOD, 100, limit=1000.0).kind == "float32"
    for good in (
        numbers(100, 1) + bytes([PACKED]) + from_bits("1100011") + np.float32(-1000).tobytes(),
        numbers(100, 8) + bytes([RICE]) + from_bits("11111111") + bytes(3) + ONES,
    ):
        assert encode([receive(sealed(good), 100, limit=1000.0)]) == sealed(good)


def test_shared_support_is_what_the_receiver_expects():
    data = encode([Part(100, None, np.ones(3, np.float32), shared=True)])
    assert receive(data, 100, np.array([1, 2, 3])).indices is None
    for support, message, reason in [
        (np.array([1, 2]), data, "count"),
        (None, data, "coding"),
        (np.array([1]), GOOD, "coding"),
    ]:
        with pytest.raises(WireError) as caught:
            receive(message, 100, support)
        assert caught.value.reason == reason


def peak_memory(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("dimension", "count"), [(100, 99), (2**31, 2**31), (2**32 - 1, 2**31), (2**31, 5), (2**31, 12)])
@pytest.mark.parametrize("flags", range(24))
def test_huge_claims_in_a_small_message_allocate_nothing(dimension, count, flags):
    data = sealed(numbers(dimension, count) + bytes([flags]) + b"\x5a" * 20)

    def refused():
        with pytest.raises(WireError):
            receive(data, dimension, np.arange(3) if flags & 7 == SHARED else None)

    assert peak_memory(refused) < 20_000


def test_a_small_vector_does_not_unpack_the_large_one_behind_it():
    data = encode([part_of(100, 10), Part(10**5, None, np.ones(10**5, np.float32))])
    assert peak_memory(lambda: decode(data, dimensions=[100, 10**5], limit=1e9)) < 4 * len(data)


def seeds():
    rng = np.random.default_rng(11)
    for kind in KINDS:
        for dimension, count in ((1, 1), (100, 1), (100, 10), (100, 37), (100, 90), (100, 100)):
            yield encode([part_of(dimension, count, seed=int(rng.integers(99)))], kind), dimension, None
        yield encode([Part(100, None, np.ones(4, np.float32), shared=True)], kind), 100, np.array([0, 4, 5, 99])
    for d in (104, 110):
        yield encode([make_part(np.ones(d), np.arange(d) % 3 == 2)], "float16"), d, None


def mutate(data, rng):
    """Flip bits, change, insert, remove, repeat bytes, or cut; most results get a right length and checksum again."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, len(out) + 1)) if out else 0
        action = int(rng.integers(6))
        if action == 0 and at < len(out):
            out[at] ^= 1 << int(rng.integers(8))
        elif action == 1 and at < len(out):
            out[at] = int(rng.choice([0, 1, 127, 128, 255, rng.integers(256)]))
        elif action == 2:
            out[at:at] = rng.bytes(int(rng.integers(1, 5)))
        elif action == 3:
            del out[at : at + int(rng.integers(1, 5))]
        elif action == 4:
            out[at:at] = out[max(0, at - 4) : at]
        else:
            del out[at:]
    if len(out) >= 12 and rng.random() < 0.9:
        out[4:8] = struct.pack("<I", len(out) - 12)
        return with_checksum(bytes(out))
    return bytes(out)


def accepted(data, dimension, support):
    """Whether a message was accepted; if so then it must be in order in every way."""
    try:
        part = receive(data, dimension, support, limit=100.0)
    except WireError:
        return False
    assert encode([part]) == data
    assert part.dimension == dimension
    assert part.values.dtype == np.float32
    assert np.all(np.abs(part.values) <= 100)
    if part.indices is not None:
        assert part.indices.size == part.values.size
        assert part.indices[0] >= 0
        assert part.indices[-1] < dimension
        assert np.all(np.diff(part.indices) > 0)
    else:
        assert part.values.size == (dimension if support is None else support.size)
    return True


def test_no_mutation_of_a_message_breaks_the_receiver():
    rng = np.random.default_rng(2024)
    verdicts = []
    for data, dimension, support in seeds():
        assert accepted(data, dimension, support)
        verdicts += [accepted(mutate(data, rng), dimension, support) for _ in range(400)]
        verdicts += [accepted(data[:n], dimension, support) for n in range(len(data))]
    assert 0.05 < np.mean(verdicts) < 0.6  # mutations do get past the checksum


def test_no_random_bytes_break_the_receiver():
    rng = np.random.default_rng(7)
    for _ in range(1500):
        assert not accepted(rng.bytes(int(rng.integers(0, 80))), 20, None)
        count, flags = int(rng.integers(1, 21)), int(rng.integers(0, 24))
        accepted(sealed(numbers(20, count) + bytes([flags]) + rng.bytes(int(rng.integers(0, 60)))), 20, None)


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_single_flipped_bit_is_noticed(kind):
    data = encode([part_of(162, 16)], kind)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WireError):
            receive(bytes(changed), 162)


def test_small_sets_and_codes_correspond_one_to_one():
    """All sets of up to 10 coordinates: different bytes for different sets, and each comes back."""
    for dimension in range(1, 11):
        seen = set()
        for number in range(1, 2**dimension):
            mask = (number >> np.arange(dimension) & 1).astype(bool)
            data = encode([make_part(np.ones(dimension), mask)], "int8")
            seen.add(data)
            np.testing.assert_array_equal(spread(receive(data, dimension))[1], mask)
        assert len(seen) == 2**dimension - 1


def test_a_large_message():
    part = part_of(10**6, 10**5)
    data = encode([part])
    arrived = receive(data, 10**6)
    np.testing.assert_array_equal(arrived.indices, part.indices)
    np.testing.assert_array_equal(arrived.values, part.values)
    assert jax.jit(index_bytes)(jnp.asarray(spread(part)[1])) == len(data) - HEADER_BYTES - 7 - 4 * 10**5


FLOATS = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: encode([]), ConfigError, "1 to 255 vectors in a message, got 0"),
        (lambda: encode([part_of(9, 3)] * 256), ConfigError, "got 256"),
        (lambda: encode([part_of(9, 3)], "auto"), ConfigError, "kind='auto'"),
        (lambda: encode([Part(0, None, FLOATS)]), ConfigError, "dimension=0"),
        (lambda: encode([Part(2**32, None, FLOATS)]), ConfigError, "dimension=4294967296"),
        (lambda: encode([Part(2, None, FLOATS)]), ConfigError, "1 to 2 values"),
        (lambda: encode([Part(9, None, FLOATS[:0], True)]), ConfigError, "1 to 9 values"),
        (lambda: encode([Part(9, None, FLOATS)]), ConfigError, "9 values without indices, got 3: pass indices"),
        (lambda: encode([Part(9, np.arange(3), FLOATS, True)]), ConfigError, "no indices in a shared part"),
        (lambda: encode([Part(9, np.arange(2), FLOATS)]), ConfigError, "3 integer indices"),
        (lambda: encode([Part(9, FLOATS, FLOATS)]), ConfigError, "integer indices, got float32"),
        (lambda: encode([Part(9, np.array([1, 1, 2]), FLOATS)]), ConfigError, "increasing indices from 0 to 8"),
        (lambda: encode([Part(9, np.array([1, 2, 9]), FLOATS)]), ConfigError, "increasing indices"),
        (lambda: encode([Part(9, np.array([-1, 2, 3]), FLOATS)]), ConfigError, "increasing indices"),
        (lambda: encode([Part(3, None, FLOATS * np.nan)]), DivergedError, "found NaN"),
        (lambda: receive(GOOD, 100, limit=math.nan), ConfigError, "limit=nan"),
        (lambda: decode(GOOD, dimensions=[100], supports=[], limit=1.0), ConfigError, "each of 1 vectors, got 0"),
    ],
)
def test_errors_of_the_sender_name_the_value_and_the_way_out(call, error, message):
    with pytest.raises(error, match=message):
        call()
