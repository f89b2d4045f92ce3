"""One client's answer to one request: checked against its own policy, recorded on its own disk, then made.

    lock the folder -> a repeat? -> policy -> solve | spend on record -> NOISE | message -> on record -> answer

What leaves is on disk before it leaves, and what it costs before that. A request that was answered is answered with the same
bytes again, or refused; it never makes a second release.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedpdm.compression.messages import encode_message
from fedpdm.config import Config, digest, validate
from fedpdm.engines.flower.client.books import ACCOUNT, BudgetClosed, open_books
from fedpdm.engines.flower.client.node_data import NodeSource, load_examples
from fedpdm.engines.flower.client.policy import check, check_plan, load_policy
from fedpdm.engines.flower.client.seal import seal_of
from fedpdm.engines.flower.client.store import Store, open_store
from fedpdm.engines.flower.client.work import Work
from fedpdm.engines.flower.protocol import Introduction, Refused, Reply, Request
from fedpdm.engines.flower.setting import agreed, deployed_setup
from fedpdm.errors import ConfigError, DataError, DivergedError, UserError
from fedpdm.privacy.ledger import AlreadySpent, Budget, BudgetExceeded, Ledger
from fedpdm.privacy.plan import Plan

__all__ = ["ACCOUNT", "Node", "answer", "introduce"]

_NAMES = (
    (BudgetClosed, "budget"),
    (BudgetExceeded, "budget"),
    (AlreadySpent, "spent"),
    (ConfigError, "settings"),
    (DataError, "data"),
    (DivergedError, "diverged"),
)
# Reasons that may quote a file or an example stay here: the server is told the name alone.
_OWN_MATTER = ("data", "diverged", "folder", "error")


class Node(NamedTuple):
    """What a client knows of itself, from its own configuration."""

    source: NodeSource
    state_dir: Path
    policy: Path

    @property
    def client(self) -> int:
        return self.source.client


def introduce(node: Node, request: Request) -> Introduction:
    """What the server may know before it asks: the client's number and its public sizes."""
    try:
        with open_store(node.state_dir):
            load_policy(node.policy)
            examples = load_examples(node.source, _settings(request), node.state_dir)
    except UserError as error:
        name, reason = _for_the_server(error)
        return Introduction(node.client, 0, 0, 0, name, reason)
    return Introduction(node.client, len(examples.labels), examples.features.shape[1], examples.classes)


def answer(node: Node, request: Request) -> Reply:
    """The message that the request asks for, or a refusal by name.

    Formal guarantee: every message of a sound job that leaves is on the ledger of `node.state_dir` first, with a noise
    multiplier that the client derived itself from the request, from its own number of examples and from its policy; the
    ledger refuses what the policy's budget does not hold, in all jobs together. So all that ever leaves this client is
    (epsilon, delta)-differentially private with the policy's budget, whatever the server asks for, if the policy allows
    secure noise and the sound mechanism alone, and if this function is what runs (docs/operations.md).
    """
    try:
        with open_store(node.state_dir) as store:
            try:
                return _answer(node, request, store)
            except UserError as error:
                store.note_refusal(request, _named(error))
                raise
    except UserError as error:
        name, reason = _for_the_server(error)
        return Reply(request.job, request.round, node.client, refused=name, reason=reason)


def _named(error: UserError) -> Refused:
    if isinstance(error, Refused):
        return error
    return Refused(next((name for kind, name in _NAMES if isinstance(error, kind)), "error"), str(error))


def _for_the_server(error: UserError) -> tuple[str, str]:
    """Name and reason of a refusal as the server may know them; the node's own log has all of it."""
    refused = _named(error)
    print(f"fedpdm: refused ({refused})", file=sys.stderr, flush=True)
    own = refused.name in _OWN_MATTER or isinstance(error, BudgetClosed)
    return refused.name, "The node's own log says more." if own else refused.reason


def _settings(request: Request) -> Config:
    try:
        values = json.loads(request.settings)
    except ValueError as error:
        raise Refused("settings", f"The settings are not JSON: {error}.") from None
    return agreed(validate(values))


def _answer(node: Node, request: Request, store: Store) -> Reply:
    if request.client != node.client:
        raise Refused("client", f"The request is for client {request.client}; this is client {node.client}.")
    if repeated := _repeated(request, store):
        return Reply.of(request, repeated)
    config, policy = _settings(request), load_policy(node.policy)
    budget, seal = Budget(**policy.budget.model_dump()), seal_of(node.source, policy.seals)
    with open_books(node.state_dir, store, budget, seal) as ledger:
        spent = [row.round for row in ledger.rows() if row.job == request.job]
        if request.round in spent:
            raise Refused("spent", f"Round {request.round} was paid for, but its message was lost: it is not made again.")
        taken = max(len(spent), len(store.messages(request.job)))
        check(policy, config, request.noise, taken)
        own = load_examples(node.source, config, node.state_dir)
        setup, plan = deployed_setup(config, len(own.labels))
        if plan:
            check_plan(policy, plan, taken)
        work = Work(config, request, own, setup, plan)
        state = store.state(request, digest(config), work.first_state)
        result = work.make(state, lambda s, sigma: _spend(ledger, request, plan, s, sigma))
        reply = Reply.of(request, encode_message(setup.links, result.packed))
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(result.state)]
        store.keep(request, reply.message, reply.vectors, leaves, ledger.chain.head if plan else None)
    return reply


def _repeated(request: Request, store: Store) -> bytes | None:
    """The stored bytes, if this very request was answered before; a refusal if it is another one for the same round."""
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


def _spend(ledger: Ledger, request: Request, plan: Plan | None, sensitivity: float, sigma: float) -> None:
    note = f"{plan.mode if plan else ''}, {request.noise} noise"
    ledger.spend(ACCOUNT, request.round, sensitivity, sigma, note, request.job)
