"""What both engines measure, each quantity in one place: test accuracy, tail average, traffic, and the row of a round."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.compression.links import Links
from fedpdm.compression.sparsify import coordinate_count
from fedpdm.problem.objective import Problem, accuracy

__all__ = ["LINKS", "TestSet", "add_traffic", "make_row", "paper_bits", "tail_average", "tail_start", "traffic_totals"]

LINKS = ("uplink", "downlink", "index")  # what is counted: bytes each way, and those of the uplink's indices
MEBIBYTE = 20  # bits; totals are kept in two words, as 32 bits would not do
DIGITS = 7  # significant digits of a measurement in a row


class TestSet(NamedTuple):
    """The examples that a model is tested with; no client holds them.

    Attributes
    ----------
    features, labels : ndarray
        [examples, n] behind the public map, and [examples].
    """

    features: Any
    labels: Any

    __test__ = False  # pytest collects classes by this name

    def accuracy(self, problem: Problem, model: Any) -> float:
        """The share of the examples that the model puts in their class."""
        return float(accuracy(problem, jnp.asarray(model), jnp.asarray(self.features), jnp.asarray(self.labels)))


def tail_start(rounds: int, tail: float) -> int:
    """The first round, counted from 0, whose model counts in the tail average; the last round always does."""
    return min(int(rounds * (1 - tail)), rounds - 1)


def tail_average(tail_sum: Any, model: np.ndarray, done: int, start: int) -> np.ndarray:
    """The mean of x0 over the rounds of the tail; before the tail begins it is the model itself.

    Parameters
    ----------
    tail_sum
        The sum of x0 over the rounds of the tail so far.
    model : ndarray
        The x0 of now.
    done, start : int
        Rounds done, and the first round of the tail (`tail_start`).
    """
    return np.asarray(tail_sum) / (done - start) if done > start else model


def paper_bits(links: Links, size: int, rounds: int, participants: int) -> dict[str, int]:
    """Bits of so many rounds by the paper's formula 32 k T K, each way; `size` is the number of coordinates."""
    each = {"uplink": links.uplink, "downlink": links.downlink}
    return {f"{name}_bits_paper": 32 * coordinate_count(share, size) * rounds * participants for name, share in each.items()}


def traffic_totals(traffic: np.ndarray) -> dict[str, int]:
    """Bytes by link."""
    return {name: (int(high) << MEBIBYTE) + int(low) for name, (high, low) in zip(LINKS, traffic, strict=True)}


def add_traffic(traffic: Array, sizes: Array) -> Array:
    """The totals `[links, 2]` with every message's bytes `[links, messages]` added."""
    half = MEBIBYTE // 2  # so that a million messages do not overflow a word
    low = traffic[:, 1] + jnp.sum(sizes & (2**half - 1), axis=1)
    middle = jnp.sum((sizes >> half) & (2**half - 1), axis=1) + (low >> half)
    high = traffic[:, 0] + jnp.sum(sizes >> MEBIBYTE, axis=1) + (middle >> half)
    return jnp.stack([high, ((middle & (2**half - 1)) << half) + (low & (2**half - 1))], axis=1)


def make_row(
    counts: Mapping[str, int], measured: Mapping[str, float], traffic: Mapping[str, int], bits: Mapping[str, int]
) -> dict[str, Any]:
    """The row of a round, as metrics.jsonl keeps it.

    Parameters
    ----------
    counts
        "round" (counted from 1), "participants", and other whole numbers.
    measured
        Numbers with a decimal point; those that were not due are NaN, and left out.
    traffic, bits
        `traffic_totals` and `paper_bits` so far.
    """
    due = {name: float(f"{value:.{DIGITS}g}") for name, value in measured.items() if not math.isnan(value)}
    return {**counts, **due, "uplink_bytes": traffic["uplink"], "downlink_bytes": traffic["downlink"], **bits}
