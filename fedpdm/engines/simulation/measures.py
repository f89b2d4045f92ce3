"""The measurements of both engines: test figure, tail average, traffic, and the row of a round."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.compression.links import Links
from fedpdm.compression.sparsify import coordinate_count
from fedpdm.problem.objective import Problem, measured_on

__all__ = ["LINKS", "TestSet", "add_traffic", "figure_name", "label_counts", "make_row", "paper_bits"]
__all__ += ["tail_average", "tail_start", "traffic_totals"]

LINKS = ("uplink", "downlink", "index")  # bytes in each direction, and those of the uplink's indices
MEBIBYTE = 20  # bits; totals are in two words, because 32 bits are too few
DIGITS = 7  # significant digits of a measurement in a row


class TestSet(NamedTuple):
    """The examples that a model is tested with; no client holds them.

    Attributes
    ----------
    features, labels : ndarray
        [examples, n] behind the public map, and [examples].
    units : ndarray or None
        [examples] equal numbers for examples of one person, if they are known.
    """

    features: Any
    labels: Any
    units: Any = None

    __test__ = False  # pytest collects classes by this name

    def measure(self, problem: Problem, model: Any) -> float:
        """The share of the examples that the model puts in their class, or the mean loss if the label is a number."""
        return float(measured_on(problem, jnp.asarray(model), jnp.asarray(self.features), jnp.asarray(self.labels)))


def figure_name(problem: Problem) -> str:
    """What rows and summary call the figure that is measured on test examples.

    Parameters
    ----------
    problem : Problem
        Gives the loss.

    Returns
    -------
    str
        The key.
    """
    return "test_accuracy" if problem.loss.target == "classes" else "test_loss"


def label_counts(labels: np.ndarray, classes: int) -> dict[str, list[int]]:
    """How many test examples every class has, for clients.json; nothing if the label is a number.

    Parameters
    ----------
    labels : ndarray
        [examples].
    classes : int
        The number of classes.

    Returns
    -------
    dict
        "test_labels", or nothing.
    """
    return {} if labels.dtype.kind == "f" else {"test_labels": np.bincount(labels, minlength=classes).tolist()}


def tail_start(rounds: int, tail: float) -> int:
    """Return the first round, counted from 0, whose model counts in the tail average; the last round always does.

    Parameters
    ----------
    rounds, tail
        Number of rounds, and the share of the tail.

    Returns
    -------
    int
        The round.
    """
    return min(int(rounds * (1 - tail)), rounds - 1)


def tail_average(tail_sum: Any, model: np.ndarray, done: int, start: int) -> np.ndarray:
    """Return the mean of x0 over the rounds of the tail; before the tail begins it is the model itself.

    Parameters
    ----------
    tail_sum
        The sum of x0 over the rounds of the tail so far.
    model : ndarray
        The present x0.
    done, start : int
        Rounds done, and the first round of the tail (`tail_start`).

    Returns
    -------
    ndarray
        The mean.
    """
    return np.asarray(tail_sum) / (done - start) if done > start else model


def paper_bits(links: Links, size: int, rounds: int, participants: int) -> dict[str, int]:
    """Return the bits of all rounds by the paper's formula 32 k T K, in each direction.

    Parameters
    ----------
    links : Links
        The shares of coordinates that are sent.
    size, rounds, participants : int
        Number of coordinates, T and K.

    Returns
    -------
    dict of str to int
        Bits by direction.
    """
    each = {"uplink": links.uplink, "downlink": links.downlink}
    return {f"{name}_bits_paper": 32 * coordinate_count(share, size) * rounds * participants for name, share in each.items()}


def traffic_totals(traffic: np.ndarray | list[list[int]]) -> dict[str, int]:
    """Return the bytes by link.

    Parameters
    ----------
    traffic : ndarray or list
        [links, 2] mebibytes and bytes.

    Returns
    -------
    dict of str to int
        Bytes.
    """
    return {name: (int(high) << MEBIBYTE) + int(low) for name, (high, low) in zip(LINKS, traffic, strict=True)}


def add_traffic(traffic: Array, sizes: Array) -> Array:
    """Add every message's bytes to the totals.

    Parameters
    ----------
    traffic, sizes : Array
        [links, 2] totals, and [links, messages] bytes.

    Returns
    -------
    Array
        [links, 2] totals.
    """
    half = MEBIBYTE // 2  # a million messages then do not overflow a word
    low = traffic[:, 1] + jnp.sum(sizes & (2**half - 1), axis=1)
    middle = jnp.sum((sizes >> half) & (2**half - 1), axis=1) + (low >> half)
    high = traffic[:, 0] + jnp.sum(sizes >> MEBIBYTE, axis=1) + (middle >> half)
    return jnp.stack([high, ((middle & (2**half - 1)) << half) + (low & (2**half - 1))], axis=1)


def make_row(
    counts: Mapping[str, int], measured: Mapping[str, float], traffic: Mapping[str, int], bits: Mapping[str, int]
) -> dict[str, Any]:
    """Make the row of a round for metrics.jsonl.

    Parameters
    ----------
    counts
        "round" (counted from 1), "participants", and other whole numbers.
    measured
        Numbers with a decimal point; a quantity that was not measured is NaN, and left out.
    traffic, bits
        `traffic_totals` and `paper_bits` so far.

    Returns
    -------
    dict
        The row.
    """
    due = {name: float(f"{value:.{DIGITS}g}") for name, value in measured.items() if not math.isnan(value)}
    return {**counts, **due, "uplink_bytes": traffic["uplink"], "downlink_bytes": traffic["downlink"], **bits}
