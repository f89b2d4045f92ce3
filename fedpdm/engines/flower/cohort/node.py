"""A member's side in a deployment: one process per message, so the state of a sum is on disk between its steps.

It is called by `fedpdm.engines.flower.client.client.answer`, behind all that is checked for every request.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedpdm.engines.flower.client.admission import make_room
from fedpdm.engines.flower.client.books import ACCOUNT, open_books
from fedpdm.engines.flower.client.identity import identity_of
from fedpdm.engines.flower.client.node_data import NodeSource, load_examples
from fedpdm.engines.flower.client.policy import Policy, check_plan
from fedpdm.engines.flower.client.seal import seal_of
from fedpdm.engines.flower.client.standard import map_rows, read_standard
from fedpdm.engines.flower.client.store import Store
from fedpdm.engines.flower.cohort.agreement import Agreement, agree_on
from fedpdm.engines.flower.cohort.share import make_first_share, make_share
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import SUFFIXES, Refused, Reply, Request
from fedpdm.privacy.ledger import Budget
from fedpdm.privacy.transaction import one_writer
from fedpdm.secure_sums.member import Member
from fedpdm.secure_sums.messages import ProtocolError, unpack
from fedpdm.secure_sums.terms import Approval, Terms

__all__ = ["Place", "pack_vectors", "progress", "take_step", "unpack_vectors"]

SAME_NOISE = 1e-6  # relative: machines may differ in the last digits of a float32
_SCHEMA = """CREATE TABLE IF NOT EXISTS sums (
    job TEXT NOT NULL, round INTEGER NOT NULL, terms BLOB NOT NULL, member BLOB NOT NULL, PRIMARY KEY (job, round)
)"""


class Place(NamedTuple):
    """Where a member finds what it knows: its data, its folder, its policy, and the store that holds the folder's lock."""

    source: NodeSource
    state_dir: Path
    policy: Policy
    store: Store

    def approval(self) -> Approval:
        """What the policy approves."""
        cohort = self.policy.cohort
        if cohort is None:
            raise Refused("roster", "This client's policy approves no cohort: without one no share leaves.")
        return Approval(frozenset(cohort.keys), cohort.size, cohort.colluding, cohort.dropouts)


def pack_vectors(vectors: list[np.ndarray]) -> bytes:
    """Pack the model and the cohort's state.

    Parameters
    ----------
    vectors : list of ndarray
        The vectors.

    Returns
    -------
    bytes
        float32 numbers.
    """
    return b"".join(np.asarray(vector, "<f4").tobytes() for vector in vectors)


def unpack_vectors(field: bytes, like: list[Any]) -> list[np.ndarray]:
    """Unpack vectors of these shapes; refuse them if they are not all finite.

    Parameters
    ----------
    field : bytes
        float32 numbers.
    like : list of arrays
        The shapes.

    Returns
    -------
    list of ndarray
        The vectors.
    """
    sizes = [int(np.prod(leaf.shape)) for leaf in like]
    if len(field) != 4 * sum(sizes):
        raise Refused("model", f"Expected {sum(sizes)} numbers for model and state, got {len(field)} bytes.")
    values = np.frombuffer(field, "<f4").astype(np.float32)
    if not np.abs(values).max(initial=0.0) < 2.0**20:  # also refuses NaN
        raise Refused("model", "The model holds numbers that are huge or not finite.")
    parts = np.split(values, np.cumsum(sizes)[:-1])
    return [part.reshape(leaf.shape) for part, leaf in zip(parts, like, strict=True)]


def take_step(place: Place, job: Job, request: Request) -> bytes:
    """Answer one step of a sum, or raise Refused.

    Formal guarantee: as in `fedpdm.engines.flower.client.client.answer`, for what leaves in secure sums: a share leaves only in
    a sum whose roster, size, colluding members and dropouts the policy approves, under noise that the member derived itself,
    once per job and round, and after its release is on the ledger.

    Parameters
    ----------
    place
        Of the member.
    job
        One that the member holds and that its policy allows.
    request
        Its task is the step. It contains the server's message of the protocol and, for the share, the model.

    Returns
    -------
    bytes
        The member's message of the protocol.
    """
    try:
        message, vectors = unpack("step", request.vectors, 2)
        with _sums(place.state_dir) as sums:
            if request.task == "advertise":
                return _begin(place, sums, agree_on(job), request, message)
            return _go_on(place, sums, agree_on(job), request, message, vectors)
    except ProtocolError as error:
        raise Refused("roster" if error.reason in ("roster", "terms") else "sum", str(error)) from error


def progress(state_dir: Path, job: str) -> tuple[int, int]:
    """Return how far a member has come in the sums of a job.

    Parameters
    ----------
    state_dir
        The member's folder.
    job
        The job's digest.

    Returns
    -------
    int, int
        The last round with a sum that the member has begun, and its steps so far; (-1, 0) before the first.
    """
    if not (state_dir / "sums.sqlite").is_file():
        return -1, 0
    with _sums(state_dir) as sums:
        row = sums.execute("SELECT round, member FROM sums WHERE job = ? ORDER BY rowid DESC LIMIT 1", (job,)).fetchone()
    return (row[0], json.loads(row[1])["step"]) if row else (-1, 0)


@contextmanager
def _sums(state_dir: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(state_dir / "sums.sqlite", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA secure_delete=ON")  # the secrets of the last step are overwritten, not only unlinked
        connection.execute(_SCHEMA)
        (state_dir / "sums.sqlite").chmod(0o600)
        yield connection
    finally:
        connection.close()


def _begin(place: Place, sums: sqlite3.Connection, agreement: Agreement, request: Request, message: bytes) -> bytes:
    terms = Terms.decode(message)
    own = agreement.terms(request.round, terms.roster)
    if replace(terms, sigma=own.sigma) != own or not abs(terms.sigma / own.sigma - 1) < SAME_NOISE:
        raise Refused("sum", "The invitation says something else than what follows from the job.")
    known = (request.job, agreement.job.config.rounds.total)
    (taken,) = sums.execute("SELECT COUNT(*) FROM sums WHERE job = ? AND round < ?", known).fetchone()
    check_plan(place.policy, agreement.plan, 0 if agreement.before_training(request.round) else taken)
    member = Member(identity_of(place.state_dir), place.approval(), terms)
    answer = member.advertise()
    try:
        with one_writer(sums):
            sums.execute("INSERT INTO sums VALUES (?, ?, ?, ?)", (request.job, request.round, message, member.save()))
            earlier = (Member.CLOSED, request.job, request.round)  # sums that were never opened stay closed
            sums.execute("UPDATE sums SET member = ? WHERE job = ? AND round != ?", earlier)
    except sqlite3.IntegrityError:
        raise Refused(
            "sum", f"This client has begun a sum for round {request.round} already: there is one per round."
        ) from None
    return answer


def _go_on(
    place: Place, sums: sqlite3.Connection, agreement: Agreement, request: Request, message: bytes, vectors: bytes
) -> bytes:
    asked = "SELECT terms, member FROM sums WHERE job = ? AND round = ?"
    row = sums.execute(asked, (request.job, request.round)).fetchone()
    if row is None:
        raise Refused("sum", f"This client has not begun a sum for round {request.round}.")
    member = Member.restore(identity_of(place.state_dir), place.approval(), Terms.decode(row[0]), row[1])
    try:
        if request.task == "masked":
            return _masked(place, member, agreement, request, message, vectors)
        return getattr(member, request.task)(message)
    finally:  # also a step that failed is taken: there is no second try
        with one_writer(sums):
            saved = (member.save(), request.job, request.round)
            sums.execute("UPDATE sums SET member = ? WHERE job = ? AND round = ?", saved)


def _masked(place: Place, member: Member, agreement: Agreement, request: Request, message: bytes, vectors: bytes) -> bytes:
    """The step in which something of the rows leaves: the ledger has it first, and the message is on record like any other."""
    size, first = 4 * agreement.words(request.round) + 4096, agreement.before_training(request.round)
    kept = request if first is None else request._replace(job=request.job + SUFFIXES["standardise"], round=0)
    place.store.admission.require_bytes(size, place.policy)
    room = 8 * agreement.job.slots * (agreement.job.width + 2) + 8 * size
    make_room(place.state_dir, room, place.policy.limits.disk_bytes_max)
    place.store.state(kept, agreement.job.digest, list)
    standard = None if first else read_standard(agreement.job, request)
    model = None if first else read_model(agreement, vectors)
    own = load_examples(place.source, agreement.job, place.state_dir)
    own = own._replace(features=map_rows(own.features, standard, double=True))
    budget, seal = Budget(**place.policy.budget.model_dump()), seal_of(place.source, place.policy.seals)
    with open_books(place.state_dir, place.store, budget, seal) as ledger:

        def spend(sensitivity: float, sigma: float) -> None:
            what = first.release.what if first else agreement.plan.mode
            note = f"{what}, secure sum of {agreement.sums.cohort.members} members"
            ledger.spend(ACCOUNT, kept.round, sensitivity, sigma, note, kept.job)

        def share() -> np.ndarray:
            if first is not None:
                return make_first_share(agreement, first, own, spend)
            assert model is not None
            return make_share(agreement, own, model[0], model[1], request.round, spend)

        answer = member.masked(message, share)
        place.store.keep(kept, Reply.of(request, answer).message, answer, [], ledger.chain.head)
    place.store.admission.count("bytes", len(answer))
    return answer


def read_model(agreement: Agreement, vectors: bytes) -> tuple[Any, Any]:
    """The broadcast and the cohort's state, as the server sent them."""
    algorithm, zeros = agreement.setup.algorithm, np.zeros(agreement.job.shape, np.float32)
    like = jax.eval_shape(lambda x0: (algorithm.broadcast(algorithm.init_server(x0, 1)), algorithm.init_client(x0)), zeros)
    leaves, tree = jax.tree.flatten(like)
    return jax.tree.unflatten(tree, unpack_vectors(vectors, leaves))
