"""A member's side in a deployment: one process per message, so the state of a sum is on disk between its steps.

It does not depend on Flower: `answer_step` takes bytes and returns bytes.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpdm.engines.flower.client.books import ACCOUNT, open_books
from fedpdm.engines.flower.client.client import Node, for_the_server
from fedpdm.engines.flower.client.held_jobs import check_whole, held_job
from fedpdm.engines.flower.client.node_data import check_schema, load_examples
from fedpdm.engines.flower.client.policy import Policy, check_plan, load_policy
from fedpdm.engines.flower.client.seal import seal_of
from fedpdm.engines.flower.client.store import Store, open_store
from fedpdm.engines.flower.cohort.agreement import Agreement, agree_on
from fedpdm.engines.flower.protocol import Refused
from fedpdm.errors import UserError
from fedpdm.privacy.ledger import Budget
from fedpdm.privacy.transaction import one_writer
from fedpdm.secure_sums.keys import public_text
from fedpdm.secure_sums.member import Member
from fedpdm.secure_sums.messages import ProtocolError
from fedpdm.secure_sums.terms import Approval, Terms

__all__ = ["Step", "answer_step", "identity_of", "pack_vectors", "public_key", "unpack_vectors"]

KEY_FILE = "cohort.key"
SAME_NOISE = 1e-6  # relative: machines may differ in the last digits of a float32
_SCHEMA = """CREATE TABLE IF NOT EXISTS sums (
    job TEXT NOT NULL, round INTEGER NOT NULL, terms BLOB NOT NULL, member BLOB NOT NULL, PRIMARY KEY (job, round)
)"""


class Step(NamedTuple):
    """A server's request to a member: one step of one sum."""

    name: str  # advertise, pieces, masked, agree or reveal
    job: str  # its digest
    round: int
    message: bytes  # the protocol's own
    vectors: bytes = b""  # masked: the model and the cohort's state


def identity_of(state_dir: Path) -> Ed25519PrivateKey:
    """Return the member's own identity; make it at the first use. Only its owner may read the file.

    Parameters
    ----------
    state_dir : Path
        The state folder.

    Returns
    -------
    Ed25519PrivateKey
        The key.
    """
    path = state_dir / KEY_FILE
    try:
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
    except FileNotFoundError:
        state_dir.mkdir(parents=True, exist_ok=True)
    except ValueError:
        raise UserError(
            f"{path} is not the key of a cohort member: restore it, or remove it and let the others approve another."
        ) from None
    key = Ed25519PrivateKey.generate()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes_raw())
    return key


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


def answer_step(node: Node, step: Step) -> bytes:
    """Answer one step, or refuse by a code of `REFUSALS` with its constant text.

    Formal guarantee: as in `fedpdm.engines.flower.client.client.answer`, for secure sums of jobs that the client holds: a share
    leaves only in a sum whose roster, size, colluding members and dropouts the policy approves, under noise that the member
    derived itself, once per job and round, and after its release is on the ledger.

    Parameters
    ----------
    node, step
        The member, and the server's request.

    Returns
    -------
    bytes
        The answer.
    """
    try:
        with open_store(node.state_dir) as store, _sums(node.state_dir) as sums:
            policy = load_policy(node.policy)
            store.admission.admit("requests", policy)
            return _answer(_Place(node, policy, store, sums), step)
    except Exception as error:  # Flower would send its text to the server
        name, reason = for_the_server(_named(error))
        raise Refused(name, reason) from None


def _named(error: Exception) -> Exception:
    if isinstance(error, ProtocolError):
        return Refused("roster" if error.reason in ("roster", "terms") else "sum", str(error))
    return error


class _Place(NamedTuple):
    """A member's files."""

    node: Node
    policy: Policy
    store: Store
    sums: sqlite3.Connection

    def approval(self) -> Approval:
        """Return the limits that the policy approves."""
        cohort = self.policy.cohort
        if cohort is None:
            raise Refused("roster", "This client's policy approves no cohort: without one no share leaves.")
        return Approval(frozenset(cohort.keys), cohort.size, cohort.colluding, cohort.dropouts)


def _answer(place: _Place, step: Step) -> bytes:
    approval, job = place.approval(), held_job(place.node.state_dir, step.job)
    if job is None:
        raise Refused("job", f"This client does not hold job {step.job[:64]!r}.")
    check_schema(place.node.source, job)
    check_whole(place.policy, job)
    agreement = agree_on(job)
    if step.name == "advertise":
        return _begin(place, step, approval, agreement)
    return _go_on(place, step, approval, agreement)


@contextmanager
def _sums(state_dir: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(state_dir / "sums.sqlite", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(_SCHEMA)
        (state_dir / "sums.sqlite").chmod(0o600)
        yield connection
    finally:
        connection.close()


def _begin(place: _Place, step: Step, approval: Approval, agreement: Agreement) -> bytes:
    terms = Terms.decode(step.message)
    own = agreement.terms(step.round, terms.roster)
    if replace(terms, sigma=own.sigma) != own or not abs(terms.sigma / own.sigma - 1) < SAME_NOISE:
        raise Refused("sum", "The invitation does not follow from the job.")
    if not 0 <= step.round < agreement.job.config.rounds.total:
        raise Refused("participations", f"Round {step.round} is not one of the job's rounds.")
    (taken,) = place.sums.execute("SELECT COUNT(*) FROM sums WHERE job = ?", (step.job,)).fetchone()
    check_plan(place.policy, agreement.plan, taken)
    member = Member(identity_of(place.node.state_dir), approval, terms)
    answer = member.advertise()
    try:
        with one_writer(place.sums):
            row = (step.job, step.round, step.message, member.save())
            place.sums.execute("INSERT INTO sums VALUES (?, ?, ?, ?)", row)
    except sqlite3.IntegrityError:
        raise Refused("sum", f"This client has already begun a sum for round {step.round}: there is one per round.") from None
    return answer


def _go_on(place: _Place, step: Step, approval: Approval, agreement: Agreement) -> bytes:
    asked = "SELECT terms, member FROM sums WHERE job = ? AND round = ?"
    row = place.sums.execute(asked, (step.job, step.round)).fetchone()
    if row is None:
        raise Refused("sum", f"This client has not begun a sum for round {step.round}.")
    member = Member.restore(identity_of(place.node.state_dir), approval, Terms.decode(row[0]), row[1])
    try:
        if step.name == "masked":
            return member.masked(step.message, lambda: _share(place, step, agreement))
        if step.name in ("pieces", "agree", "reveal"):
            return getattr(member, step.name)(step.message)
        raise Refused("sum", f"A sum has no step {step.name!r}.")
    finally:  # a failed step counts too: there is no second try
        with one_writer(place.sums):
            saved = (member.save(), step.job, step.round)
            place.sums.execute("UPDATE sums SET member = ? WHERE job = ? AND round = ?", saved)


def _share(place: _Place, step: Step, agreement: Agreement) -> np.ndarray:
    import jax  # slow to import; three of the five steps do not need it

    from fedpdm.engines.flower.cohort.share import make_share

    node, algorithm = place.node, agreement.setup.algorithm
    zeros = np.zeros(agreement.job.shape, np.float32)
    like = jax.eval_shape(lambda x0: (algorithm.broadcast(algorithm.init_server(x0, 1)), algorithm.init_client(x0)), zeros)
    leaves, tree = jax.tree.flatten(like)
    broadcast, state = jax.tree.unflatten(tree, unpack_vectors(step.vectors, leaves))
    budget, seal = Budget(**place.policy.budget.model_dump()), seal_of(node.source, place.policy.seals)
    with open_books(node.state_dir, place.store, budget, seal) as ledger:

        def spend(sensitivity: float, sigma: float) -> None:
            note = f"{agreement.plan.mode}, secure sum of {agreement.sums.cohort.members} members"
            ledger.spend(ACCOUNT, step.round, sensitivity, sigma, note, step.job)

        own = load_examples(node.source, agreement.job, node.state_dir)
        return make_share(agreement, own, broadcast, state, step.round, spend)


def public_key(state_dir: Path) -> str:
    """Return the member's identity as its peers' policies list it.

    Parameters
    ----------
    state_dir : Path
        The state folder.

    Returns
    -------
    str
        The public key in hexadecimal.
    """
    return public_text(identity_of(state_dir))
