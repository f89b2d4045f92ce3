"""The Strategy: meets nodes, asks those whose turn it is, and gives what comes back to the coordinator."""

import logging
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpdm.engines.flower.protocol import Introduction, Refused, Reply, Request, pack, unpack
from fedpdm.engines.flower.server import Coordinator
from fedpdm.errors import UserError

__all__ = ["Nodes", "PrimalDual", "POLL_SECONDS"]

POLL_SECONDS = 0.5
_log = logging.getLogger("flwr")


class Nodes:
    """Which node is which client. Flower's node ids are new after a restart; a client's number is not."""

    def __init__(self, grid: Grid, introduction: Request, clients: int, timeout: float) -> None:
        self._grid, self._introduction, self._clients, self._timeout = grid, introduction, clients, timeout
        self._met: dict[int, Introduction] = {}
        self._turned_away: set[int] = set()

    def connected(self) -> dict[int, int]:
        """Client -> node id of all that are connected now; nodes that are new are asked who they are."""
        online = set(self._grid.get_node_ids())
        self._met = {node: who for node, who in self._met.items() if node in online}
        new = online - set(self._met) - self._turned_away
        if new:
            asked = dict.fromkeys(new, self._introduction)
            for node, records in _ask(self._grid, asked, MessageType.QUERY, "introduction", self._timeout).items():
                self._meet(node, records)
        return {who.client: node for node, who in self._met.items()}

    def shape(self) -> tuple[int, int]:
        """Classes and features, as the nodes say."""
        who = next(iter(self._met.values()))
        return who.classes, who.features

    def _meet(self, node: int, records: Any) -> None:
        try:
            if isinstance(records, Refused):
                raise records
            who = unpack(Introduction, records)
            if who.refused:
                raise Refused(who.refused, who.reason)
            if not 0 <= who.client < self._clients:
                raise Refused("client", f"It says that it is client {who.client}; there are clients 0 to {self._clients - 1}.")
            if any(other.client == who.client for other in self._met.values()):
                raise Refused("duplicate", f"Client {who.client} is connected already, by another node.")
            if self._met and (who.classes, who.features) != self.shape():
                raise Refused("data", f"It has {who.classes} classes and {who.features} features; the others {self.shape()}.")
        except Refused as refused:
            self._turned_away.add(node)
            _log.warning("fedpdm: node %s is not used (%s)", node, refused)
            return
        self._met[node] = who
        _log.info("fedpdm: client %d is there (%d examples)", who.client, who.examples)

    def wait_for(self, least: int, seconds: float) -> dict[int, int]:
        """Wait until enough clients are connected; an error when the time is over."""
        until, said = time.monotonic() + seconds, -1
        while len(there := self.connected()) < least:
            if len(there) != said:
                said = len(there)
                _log.info("fedpdm: waiting for clients: %d of %d are connected (at most %g s)", said, least, seconds)
            if time.monotonic() > until:
                raise UserError(
                    f"{len(there)} of {least} clients are connected after {seconds:g} s. Nothing is lost: start the nodes and "
                    "run again, or lower flower.nodes or raise flower.wait."
                )
            time.sleep(POLL_SECONDS)
        return there


class PrimalDual(Strategy):
    """Federated rounds of any algorithm of fedpdm, from the coordinator's checkpoint on.

    Parameters
    ----------
    coordinator : Coordinator
        Knows the model, the rounds and the run folder.
    nodes : Nodes
        Knows who is connected.
    least, wait
        A round begins when this many clients are connected, and waits so many seconds for them.
    """

    def __init__(self, coordinator: Coordinator, nodes: Nodes, least: int, wait: float) -> None:
        self.coordinator, self.nodes, self.least, self.wait = coordinator, nodes, least, wait
        self._asked: dict[int, Request] = {}

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """The requests of the coordinator's next round, to those of its clients that are connected."""
        there = self.nodes.wait_for(self.least, self.wait)
        self._asked = self.coordinator.requests(client for client in self.coordinator.chosen() if client in there)
        return [
            Message(pack(request), dst_node_id=there[client], message_type=MessageType.TRAIN, group_id=str(server_round))
            for client, request in self._asked.items()
        ]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """End the round with these replies."""
        return None, self._end_round([_reply(message) for message in replies])

    def _end_round(self, replies: list[Reply | Refused]) -> MetricRecord:
        row, dropped = self.coordinator.take(self._asked, replies)
        for line in dropped:
            _log.warning("fedpdm: round %d, %s", row["round"], line)
        accuracy = f", accuracy {row['test_accuracy']:.4f}" if "test_accuracy" in row else ""
        _log.info(
            "fedpdm: round %d of %d: %d messages used, %d missing%s",
            row["round"],
            self.coordinator.config.rounds.total,
            row["participants"],
            row["missing"],
            accuracy,
        )
        return MetricRecord({key: value for key, value in row.items() if isinstance(value, int | float)})

    def start(self, grid: Grid, initial_arrays: ArrayRecord | None = None, *_: Any, timeout: float = 3600, **__: Any) -> Result:
        """Run to the end, from the last checkpoint. The model and its measurements are in the run folder."""
        result = Result()
        nothing = ConfigRecord()
        while not self.coordinator.done:
            number = self.coordinator.round + 1
            messages = {m.metadata.dst_node_id: m for m in self.configure_train(number, ArrayRecord(), nothing, grid)}
            answers = _exchange(grid, messages, timeout)
            replies = [_from(client, answers[node]) for client, node in self._places(messages).items()]
            result.train_metrics_clientapp[number] = self._end_round(replies)
        return result

    def _places(self, messages: dict[int, Message]) -> dict[int, int]:
        """Client -> node of those that were asked."""
        return dict(zip(self._asked, messages, strict=True))

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Clients are not asked for accuracies: these would be releases of their own."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Say what is run."""
        config = self.coordinator.config
        _log.info("fedpdm: %s, job %s, from round %d", config.algorithm.name, self.coordinator.job, self.coordinator.round + 1)


def _reply(message: Message) -> Reply | Refused:
    """What a message from outside holds, or why that is nothing."""
    if message.has_error():
        return Refused("node", message.error.reason or f"error {message.error.code}")
    try:
        return unpack(Reply, message.content)
    except Refused as refused:
        return refused


def _from(client: int, message: Message | Refused) -> Reply | Refused:
    """The reply of the node that stands for this client: it speaks for no other, and a failure gets its number."""
    reply = message if isinstance(message, Refused) else _reply(message)
    if isinstance(reply, Reply) and reply.refused:
        return Refused(reply.refused, f"(client {client}) {reply.reason}")
    if isinstance(reply, Reply) and reply.client != client:
        return Refused("impostor", f"(client {client}) It answered for client {reply.client}.")
    return reply if isinstance(reply, Reply) else Refused(reply.name, f"(client {client}) {reply.reason}")


def _exchange(grid: Grid, messages: dict[int, Message], timeout: float) -> dict[int, Message | Refused]:
    """Send one message to every node and collect the first reply to each until the time is over."""
    waiting: dict[str, int] = {}
    answers: dict[int, Message | Refused] = {}
    for (node, _), name in zip(messages.items(), grid.push_messages(list(messages.values())), strict=True):
        if name:
            waiting[name] = node
        else:
            answers[node] = Refused("unsent", "The SuperLink did not take the request.")
    until = time.monotonic() + timeout
    while waiting and time.monotonic() < until:
        for reply in grid.pull_messages(list(waiting)):
            # A lost node's error comes from the SuperLink itself: only this id says whose it is.
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                answers[node] = reply
        time.sleep(POLL_SECONDS if waiting else 0)
    late = Refused("late", f"No reply within {timeout:g} s; one that comes later is not used.")
    return answers | dict.fromkeys(waiting.values(), late)


def _ask(grid: Grid, asked: dict[int, Request], kind: str, group: str, timeout: float) -> dict[int, Any]:
    messages = {
        node: Message(pack(request), dst_node_id=node, message_type=kind, group_id=group) for node, request in asked.items()
    }
    return {
        node: answer if isinstance(answer, Refused) else _content(answer)
        for node, answer in _exchange(grid, messages, timeout).items()
    }


def _content(message: Message) -> Any:
    return Refused("node", message.error.reason or "error") if message.has_error() else message.content
