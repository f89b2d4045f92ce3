"""One client's answer to one request: checked against its job and its policy, recorded on its own disk, then made.

    lock the folder -> a limit of the day? -> a job that is held? -> a repeat? -> policy and budget
        -> rows -> solve | spending recorded -> NOISE | message -> recorded -> answer

A message is on disk before it leaves, and its cost before that. A repeated request gets the same bytes again, or a refusal; it
never makes a second release. Refusals, their texts, the sizes of messages and the written files depend on the request, on the
job and on the policy, never on a row.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from fedpdm.compression.messages import encode_message
from fedpdm.engines.flower.client.admission import make_room
from fedpdm.engines.flower.client.books import ACCOUNT, BudgetClosed, open_books
from fedpdm.engines.flower.client.evidence import keep_exchange
from fedpdm.engines.flower.client.held_jobs import check_whole, held_job, take_offer
from fedpdm.engines.flower.client.identity import prove
from fedpdm.engines.flower.client.node_data import NodeSource, check_schema, forget_old_rows, load_examples
from fedpdm.engines.flower.client.policy import Policy, check_plan, load_policy
from fedpdm.engines.flower.client.seal import seal_of
from fedpdm.engines.flower.client.standard import release_means
from fedpdm.engines.flower.client.store import Store, open_store
from fedpdm.engines.flower.client.work import Work
from fedpdm.engines.flower.cohort.node import Place, take_step
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import (
    REFUSALS,
    STEPS,
    SUFFIXES,
    Introduction,
    Meeting,
    Refused,
    Reply,
    Request,
    check_meeting,
    check_request,
)
from fedpdm.errors import UserError
from fedpdm.privacy.ledger import AlreadySpent, Budget, BudgetExceeded, Ledger

__all__ = ["ACCOUNT", "SUFFIXES", "Node", "answer", "introduce", "for_the_server"]

_NAMES = ((BudgetClosed, "budget"), (BudgetExceeded, "budget"), (AlreadySpent, "spent"))
STOPS = (KeyboardInterrupt, SystemExit, GeneratorExit)
Answer = TypeVar("Answer")


class Node(NamedTuple):
    """A client's own configuration."""

    source: NodeSource
    state_dir: Path
    policy: Path

    @property
    def client(self) -> int:
        return self.source.client


def introduce(node: Node, meeting: Meeting) -> Introduction:
    """Tell the server whether this client takes part in the job. It reads no row.

    Parameters
    ----------
    node, meeting
        The client, and the server's message.

    Returns
    -------
    Introduction
        The client's number, or a refusal.
    """

    def meet(store: Store, policy: Policy) -> Introduction:
        store.admission.admit("introductions", policy)
        forget_old_rows(node.source, node.state_dir)
        job = held_job(node.state_dir, meeting.job)
        if job is None:
            job = take_offer(node.state_dir, meeting.job, meeting.offer, policy, store.admission)
        check_schema(node.source, job)
        check_whole(policy, job)
        key, proof = prove(node.state_dir, meeting, node.client)
        return Introduction(node.client, key=key, proof=proof)

    try:
        check_meeting(meeting)
        return _with_store(node, meeting.job, -1, meet)
    except STOPS:
        raise
    except BaseException as error:  # of any kind, a panic of compiled code too: its text stays at the node
        return Introduction(node.client, *for_the_server(error))


def answer(node: Node, request: Request) -> Reply:
    """Make the requested message, or refuse by a code of `REFUSALS`.

    Formal guarantee: every message of a sound job is on the ledger of `node.state_dir` before it leaves, with a noise
    multiplier that the client derived itself from the job that it holds, from the public number of slots and from its policy.
    The ledger refuses a release beyond the policy's budget, over all jobs together. Refusals, their texts, the sizes of
    messages and the written files do not depend on rows. So everything that ever leaves this client is (epsilon,
    delta)-differentially private with the policy's budget, for any requests of the server, if the policy allows only secure
    noise and the sound mechanism, if there are no more rows than slots, and if the node runs this function
    (docs/operations.md). Time is not covered.

    Parameters
    ----------
    node, request
        The client, and the server's request.

    Returns
    -------
    Reply
        The message, or a refusal.
    """
    try:
        check_request(request)
        if request.client != node.client:
            raise Refused("client", f"The request is for client {request.client}; this is client {node.client}.")
        return _with_store(node, request.job, request.round, lambda store, policy: _answer(node, request, store, policy))
    except STOPS:
        raise
    except BaseException as error:  # see above
        name, reason = for_the_server(error)
        known = request.job if name != "malformed" else ""
        return Reply(known, request.round if known else -1, node.client, refused=name, reason=reason)


def for_the_server(error: BaseException) -> tuple[str, str]:
    """Return code and constant text of a refusal, and print the details to the node's own log.

    Parameters
    ----------
    error : BaseException
        The error of any kind.

    Returns
    -------
    str, str
        A key of `REFUSALS`, and its text.
    """
    refused = _named(error)
    print(f"fedpdm: refused ({str(refused)[:1000]})", file=sys.stderr, flush=True)
    return refused.name, REFUSALS[refused.name]


def _named(error: BaseException) -> Refused:
    if isinstance(error, Refused) and error.name in REFUSALS:
        return error
    name = next((name for kind, name in _NAMES if isinstance(error, kind)), "node")
    return Refused(name, str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")


def _with_store(node: Node, job: str, round_index: int, work: Callable[[Store, Policy], Answer]) -> Answer:
    """Do the work under the folder's lock; record a refusal, up to the limits of the day."""
    with open_store(node.state_dir) as store:
        try:
            return work(store, load_policy(node.policy))
        except STOPS:
            raise
        except BaseException as error:
            refused = _named(error)
            if refused.name != "rate":
                store.note_refusal(job, round_index, refused)
            raise refused from error


def _answer(node: Node, request: Request, store: Store, policy: Policy) -> Reply:
    store.admission.admit("requests", policy)
    forget_old_rows(node.source, node.state_dir)
    job = held_job(node.state_dir, request.job)
    if job is None:
        raise Refused("job", f"This client does not hold job {request.job}: `fedpdm flower approve JOB` lets it take part.")
    if (request.task in STEPS) != (job.config.privacy.trust == "cohorts"):
        raise Refused("settings", "In a job of secure sums, and only there, clients take steps of sums and nothing else.")
    request = request._replace(job=request.job + SUFFIXES.get(request.task, ""))
    if request.task not in STEPS and (repeated := _repeated(request, store)):
        return _reply(request, repeated)
    check_schema(node.source, job)
    check_whole(policy, job)
    before = request.task in STEPS and job.first_release is not None and request.round == job.config.rounds.total
    if request.round >= job.config.rounds.total and not before:
        raise Refused("participations", f"Round {request.round} is not one of the job's {job.config.rounds.total} rounds.")
    if request.task in STEPS:
        return Reply.of(request, take_step(Place(node.source, node.state_dir, policy, store), job, request))
    budget, seal = Budget(**policy.budget.model_dump()), seal_of(node.source, policy.seals)
    with open_books(node.state_dir, store, budget, seal) as ledger:
        return _release(node, request, job, store, policy, ledger)


def _release(node: Node, request: Request, job: Job, store: Store, policy: Policy, ledger: Ledger) -> Reply:
    """Make a new message, after all checks that need no rows."""
    spent = [row.round for row in ledger.rows() if row.job == request.job]
    if request.round in spent:
        raise Refused("spent", f"Round {request.round} was spent, but its message was lost: it is not made again.")
    taken = max(len(spent), len(store.messages(request.job)))
    _require_budget(job, request, policy, ledger, taken)
    size = 8 * job.shape[0] * job.shape[1] + 4096
    store.admission.require_bytes(size, policy)
    make_room(node.state_dir, 8 * job.places_of(node.client) * (job.width + 3) + 8 * size, policy.limits.disk_bytes_max)
    vectors, state, next_state = _make(node, request, job, store, ledger)
    reply = _reply(request, vectors)
    if policy.audit.keep_messages and request.task == "train":
        keep_exchange(node.state_dir, request, state, vectors)
    store.keep(request, reply.message, vectors, next_state, ledger.chain.head if job.setup[1] else None)
    store.admission.count("bytes", len(vectors))
    return reply


def _make(
    node: Node, request: Request, job: Job, store: Store, ledger: Ledger
) -> tuple[bytes, list[np.ndarray], list[np.ndarray]]:
    """Make the message, the state before and the state after it; its cost is on the ledger before any noise is drawn."""
    work = Work(job, request) if request.task != "standardise" else None
    state = store.state(request, job.digest, work.first_state if work else list)
    own = load_examples(node.source, job, node.state_dir)
    # a person with rows at q clients is in q releases where others are in one: each counts q times
    shared = job.config.privacy.clients_per_unit**0.5

    def spend(sensitivity: float, sigma: float) -> None:
        note = work.note if work else f"{job.first_release.what if job.first_release else ''}, {job.noise} noise"
        ledger.spend(ACCOUNT, request.round, sensitivity, sigma / shared, note, request.job)

    if work is None:
        return release_means(job, node.client, own, spend), state, state
    if request.task == "evaluate":
        return work.evaluate(own, spend), state, state
    if request.task == "intervals":
        return work.curvature(own, spend), state, state
    result = work.make(own, state, spend)
    return encode_message(work.setup.links, result.packed), state, [np.asarray(leaf) for leaf in jax.tree.leaves(result.state)]


def _require_budget(job: Job, request: Request, policy: Policy, ledger: Ledger, taken: int) -> None:
    """Refuse a request beyond the job or the budget, before anything is solved."""
    plan = job.setup[1]
    if request.task == "evaluate":
        if job.evaluation is None or request.round + 1 not in job.evaluation.rounds(job.config.rounds.total):
            raise Refused("evaluation", f"The job has no evaluation after round {request.round + 1}.")
        multiplier = job.evaluation.cost_multiplier(job.config)
    elif request.task == "standardise":
        if plan is None or not plan.standard_multiplier or request.round != 0:
            raise Refused("standard", "The job has no such release of means, or it is not asked for as the first message.")
        check_plan(policy, plan)
        multiplier = plan.standard_cost_multiplier()
    elif request.task == "intervals":
        if plan is None or not plan.interval_multiplier or request.round + 1 != job.config.rounds.total:
            raise Refused(
                "intervals", "The job has no such release of gradients and curvature, or it is not asked for at the end."
            )
        check_plan(policy, plan)
        multiplier = plan.interval_cost_multiplier()
    elif plan is None:
        return
    else:
        check_plan(policy, plan, taken)
        multiplier = plan.cost_multiplier()
    if ledger.remaining_releases(ACCOUNT, multiplier) < 1:
        raise Refused("budget", f"The rest of the budget is too small for a release with noise multiplier {multiplier:.4g}.")


def _reply(request: Request, vectors: bytes) -> Reply:
    """Make the reply, under the job's own name."""
    return Reply.of(request._replace(job=request.job.removesuffix(SUFFIXES.get(request.task, ""))), vectors)


def _repeated(request: Request, store: Store) -> bytes | None:
    """Return the stored bytes if this request was answered before; refuse another request for the same round."""
    kept = store.messages(request.job)
    mine = next((message for message in kept if message.round == request.round), None)
    if mine is None:
        if kept and kept[-1].round > request.round:
            raise Refused("order", f"Round {request.round} is over: this client has answered round {kept[-1].round}.")
        return None
    vectors = store.vectors(request.job, request.round)
    if mine.request != request.digest() or vectors is None:
        raise Refused("repeat", f"Round {request.round} was answered, for another request: a round is answered once.")
    return vectors
