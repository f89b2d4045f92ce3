"""A client's rows in the job's public slots: one row in a slot, or all rows of one person.

The first units of the file, in its order, get random slots; the others do not count (Lemma P of docs/privacy/proofs.md).
"""

import hashlib
import secrets
import sys
from typing import NamedTuple

import numpy as np

from fedpdm.data.weights import unit_shares
from fedpdm.engines.flower.client.rows import Rows, rank_in_unit, unit_numbers
from fedpdm.engines.flower.job import Job

__all__ = ["ClientExamples", "Dealt", "deal", "in_slots", "warn"]


class ClientExamples(NamedTuple):
    """A client's examples after the public map, in the job's slots: empty ones are zero, `held_out` ones are not trained on.

    All arrays but the last have as many rows as the slots can hold (`Job.places_of`); this number does not depend on the rows.
    """

    features: np.ndarray  # [places, d] float32
    labels: np.ndarray  # [places] int32, or numbers
    filled: np.ndarray  # [places] bool
    held_out: np.ndarray  # [places] bool
    weights: np.ndarray  # [places] float32: 1, or 1/m for each of a person's m rows; 0 where nothing is filled
    beyond: np.ndarray  # [] int64, rows, or persons, without a slot; only the owner sees this number

    def trained(self) -> np.ndarray:
        """Return the weight of every place in training."""
        return np.where(self.held_out, np.float32(0.0), self.weights)


class Dealt(NamedTuple):
    """The place of every row: -1 for one that does not count. And how many units have no slot."""

    places: np.ndarray
    beyond: int


def deal(rows: Rows, job: Job, client: int, order: np.ndarray | None = None) -> Dealt:
    """Deal rows to places. Where the unit is a person, a slot has `job.unit_rows` places; further rows do not count.

    Parameters
    ----------
    rows, job, client
        The rows, the job, and the client's number.
    order : ndarray, optional
        The slots of the first unit, of the second, and so on; None: they are drawn.

    Returns
    -------
    Dealt
        The place of a row depends on its person, on that person's rows and on random numbers alone.
    """
    units, slots = unit_numbers(rows.units, len(rows.good)), job.slots_of(client)
    rank = rank_in_unit(units, rows.good)
    kept = rows.good & (units < slots) & (rank < job.unit_rows)
    order = _order(job, slots) if order is None else order
    places = np.where(kept, order[np.minimum(units, slots - 1)] * job.unit_rows + np.minimum(rank, job.unit_rows - 1), -1)
    return Dealt(places, rows.beyond + max(0, int(units.max(initial=-1)) + 1 - slots))


def in_slots(rows: Rows, dealt: Dealt, job: Job, client: int, name: str) -> ClientExamples:
    """Put the rows, after the public map, into their places. One that is not finite leaves its place empty.

    Parameters
    ----------
    rows, dealt
        The rows after the map, and their places.
    job, client, name
        The job, the client's number, and the file's name for warnings.

    Returns
    -------
    ClientExamples
        The examples.
    """
    whole = np.isfinite(rows.features).all(axis=1) & (rows.features != 0).any(axis=1)
    own, count = np.flatnonzero((dealt.places >= 0) & whole), job.places_of(client)
    _tell(rows, dealt, whole, job, client, name)
    features = np.zeros((count, rows.features.shape[1]), np.float32)
    labels, filled, held_out, weights = (np.zeros(count, kind) for kind in (rows.labels.dtype, bool, bool, np.float32))
    places = dealt.places[own]
    features[places], labels[places], filled[places] = rows.features[own], rows.labels[own], True
    of_slot = np.bincount(places // job.unit_rows, minlength=job.slots_of(client))
    shared = np.full_like(of_slot, job.unit_rows) if job.kind == "time" else np.maximum(of_slot, 1)  # a band counts the same
    weights[places] = unit_shares(shared)[places // job.unit_rows]
    held_out[places] = _held_out(rows, own, job)
    return ClientExamples(features, labels, filled, held_out, weights, np.array(dealt.beyond))


def _tell(rows: Rows, dealt: Dealt, whole: np.ndarray, job: Job, client: int, name: str) -> None:
    """Say at the node which rows do not count."""
    units, slots = unit_numbers(rows.units, len(rows.good)), job.slots_of(client)
    within = units < slots
    if lost := int((within & ~(rows.good & (whole | (dealt.places < 0)))).sum()):
        warn(f"{name}: {lost} rows are malformed, without a label or not finite: they do not count.")
    if cut := rows.cut + int((within & rows.good & (dealt.places < 0)).sum()):
        warn(f"{name}: {cut} rows beyond {job.unit_rows} of one {job.unit} do not count.")
    if dealt.beyond:
        unit = job.unit or "row"
        warn(f"{name}: {dealt.beyond} {unit}s are beyond the job's {slots} slots and are not used: leave {unit}s out.")


def warn(text: str) -> None:
    """Write a line to the node's own log.

    Parameters
    ----------
    text : str
        The line.
    """
    print(f"fedpdm: {text}", file=sys.stderr, flush=True)


def _order(job: Job, slots: int) -> np.ndarray:
    """Draw the slot of the first unit, of the second, and so on, so that a slot reveals nothing about a row's position.

    Otherwise a row that is removed from the file would move all later rows to other slots, and so to other batches.
    """
    order = list(range(slots))
    if job.noise == "secure" and job.setup[1] is not None:
        secrets.SystemRandom().shuffle(order)
    return np.array(order, np.int64)


def _held_out(rows: Rows, own: np.ndarray, job: Job) -> np.ndarray:
    """Choose the rows for evaluation: a function of each row alone, or of its person, so that none affects another one."""
    out = np.zeros(len(own), bool)
    if job.evaluation is None:
        return out
    limit = int(job.evaluation.share * 2**64)
    subjects = _subjects(rows, own) if job.kind == "time" else None
    for place, row in enumerate(own):
        unit = rows.units[row] if rows.units is not None else None
        if subjects is not None and unit is not None:  # the name of a subject is its place in the file, which depends on others
            content = subjects[unit]
        else:
            content = rows.features[row].tobytes() + rows.labels[row].tobytes() if unit is None else unit.encode()
        out[place] = int.from_bytes(hashlib.sha256(job.id.encode() + content).digest()[:8]) < limit
    return out


def _subjects(rows: Rows, own: np.ndarray) -> dict[str, bytes]:
    """What the rows of each subject hold, by its name: its features in the first band, and its labels in all of them."""
    found: dict[str, bytes] = {}
    assert rows.units is not None, "a time has subjects"
    for row in own:
        name, label = rows.units[row] or "", rows.labels[row].tobytes()
        found[name] = found[name] + label if name in found else rows.features[row].tobytes() + label
    return found
