"""Speed of selection, length of index codes, time to encode and decode.

    JAX_PLATFORMS=cpu python benchmarks/wire.py [--quick]

All ratios are of times measured in the same run, candidates in turn, the best of several repetitions each.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedpdm.compression.indices import encode_indices, entropy_bits
from fedpdm.compression.sizes import message_bytes
from fedpdm.compression.sparsify import coordinate_count, random_mask, top_k_mask
from fedpdm.compression.values import KINDS, rounded
from fedpdm.compression.wire import HEADER_BYTES, Part, decode, encode

RATIOS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9)


def magnitude_bits(values: Array) -> Array:
    return lax.bitcast_convert_type(values, jnp.int32) & 0x7FFFFFFF


def scattered(positions: Array, size: int) -> Array:
    return jnp.zeros(size, bool).at[positions].set(True)


def by_sort(values: Array, k: int) -> Array:
    return scattered(jnp.argsort(-magnitude_bits(values), stable=True)[:k], values.size)


def by_sorted_values(values: Array, k: int) -> Array:
    """Not exact where there are ties."""
    bits = magnitude_bits(values)
    return bits >= jnp.sort(bits)[values.size - k]


def by_top_k(values: Array, k: int) -> Array:
    """XLA has a partial sort for float32 and this very pattern; its time depends on k and on the order of the values."""
    return scattered(lax.top_k(jnp.abs(values), k)[1], values.size)


def by_histogram(values: Array, k: int) -> Array:
    """Radix select in three passes; not exact where there are ties."""
    bits, prefix, wanted = magnitude_bits(values), jnp.int32(0), jnp.int32(k)
    for shift, width in ((20, 11), (10, 10), (0, 10)):
        alive = bits >> (shift + width) == prefix >> (shift + width)
        digits = bits >> shift & (2**width - 1)
        counts = jnp.zeros(2**width, jnp.int32).at[digits].add(alive.astype(jnp.int32))
        at_least = jnp.cumsum(counts[::-1])[::-1]
        digit = jnp.sum(at_least >= wanted) - 1
        wanted = wanted - at_least[digit] + counts[digit]
        prefix = prefix | digit.astype(jnp.int32) << shift
    return bits >= prefix


def by_plain_bisection(values: Array, k: int) -> Array:
    """Without the sum over rows that XLA can vectorise; not exact where there are ties."""
    bits = magnitude_bits(values)

    def step(i: Array, key: Array) -> Array:
        trial = key | 1 << (30 - i)
        return jnp.where(jnp.sum(bits >= trial, dtype=jnp.int32) >= k, trial, key)

    return bits >= lax.fori_loop(0, 31, step, jnp.int32(0))


CANDIDATES = {
    "stable argsort": by_sort,
    "sort of the values": by_sorted_values,
    "lax.top_k": by_top_k,
    "histogram select": by_histogram,
    "plain bisection": by_plain_bisection,
    "top_k_mask": top_k_mask,
}


def best_times(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Milliseconds: the best of several rounds through all candidates, so that a slow moment hits all of them."""
    times = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        jax.block_until_ready(call())
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            times[name] = min(times[name], 1e3 * (time.perf_counter() - start))
    return times


def selection(quick: bool) -> None:
    print("\nSelection, ms (times the last row)")
    rng = np.random.default_rng(0)
    cases = [((30, 162), 16, 30), ((30, 7850), 785, 10), ((30, 7850), 3925, 10)]
    cases += [] if quick else [((10**7,), 10**5, 3), ((10**7,), 5 * 10**6, 1)]
    columns = []
    for shape, k, repeats in cases:
        values = jnp.asarray(rng.normal(size=shape), jnp.float32)
        calls = {}
        for name, function in CANDIDATES.items():
            chosen = partial(function, k=k)
            calls[name] = partial(jax.jit(jax.vmap(chosen) if len(shape) > 1 else chosen), values)
        columns.append(best_times(calls, repeats))
    print(f"{'':20}" + "".join(f"{'x'.join(map(str, shape))}, k={k:<9}".rjust(25) for shape, k, _ in cases))
    for name in CANDIDATES:
        cells = [f"{column[name]:.2f} ({column[name] / column['top_k_mask']:.1f}x)" for column in columns]
        print(f"{name:20}" + "".join(cell.rjust(25) for cell in cells))


def index_codes(quick: bool) -> None:
    print("\nIndex bits (whole bytes) over log2 C(d,k), random supports: mean, largest")
    print(f"{'k/d':>6}" + "".join(f"{f'd={d}':>16}" for d in (162, 7850, 10**6)))
    for ratio in RATIOS:
        cells = []
        for dimension, repeats in ((162, 200), (7850, 50), (10**6, 1 if quick else 3)):
            count = coordinate_count(ratio, dimension)
            rng = np.random.default_rng(1)
            sets = [np.sort(rng.choice(dimension, count, replace=False)) for _ in range(repeats)]
            over = [8 * len(encode_indices(one, dimension)[1]) / entropy_bits(dimension, count) for one in sets]
            cells.append(f"{np.mean(over):.3f}, {max(over):.3f}")
        print(f"{ratio:6}" + "".join(f"{cell:>16}" for cell in cells))


def messages(quick: bool) -> None:
    print("\nMessages, random supports: bytes, bits per value sent, ms to encode, ms to decode")
    cases = [(162, 16), (7850, 785), (7850, 7850), (10**6, 10**5), *([] if quick else [(10**7, 10**5)])]
    for dimension, count in cases:
        rng = np.random.default_rng(2)
        indices = None if count == dimension else np.sort(rng.choice(dimension, count, replace=False))
        part = Part(dimension, indices, rng.normal(size=count).astype(np.float32))
        for kind in KINDS:
            data = encode([part], kind)
            calls = {
                "encode": partial(encode, [part], kind),
                "decode": partial(decode, data, dimensions=[dimension], limit=1e3),
            }
            times = best_times(calls, 5)
            header = len(data) - HEADER_BYTES
            print(
                f"d={dimension:<9} k={count:<7} {kind:8} {len(data):>9} {8 * header / count:>7.2f} "
                f"{times['encode']:>9.3f} {times['decode']:>9.3f}"
            )


def simulation() -> None:
    print("\nPer round of 30 clients in simulation, ms, compiled")
    keys = jax.random.split(jax.random.key(0), 30)
    for size in (162, 7850):
        values = jax.random.normal(jax.random.key(1), (30, size))
        masks = jax.vmap(partial(top_k_mask, k=size // 10))(values)
        calls = {
            "top_k_mask": partial(jax.jit(jax.vmap(partial(top_k_mask, k=size // 10))), values),
            "random_mask": partial(jax.jit(jax.vmap(partial(random_mask, shape=(size,), k=size // 10))), keys),
            "rounded (auto)": partial(jax.jit(jax.vmap(lambda v, m: rounded(v, m, "auto", 0.1))), values, masks),
            "message_bytes": partial(jax.jit(jax.vmap(lambda m: message_bytes(m, 4))), masks),
        }
        print(f"d={size:<6}" + "   ".join(f"{name} {took:.3f}" for name, took in best_times(calls, 20).items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the vectors of ten million")
    quick = parser.parse_args().quick
    index_codes(quick)
    messages(quick)
    simulation()
    selection(quick)


if __name__ == "__main__":
    main()
