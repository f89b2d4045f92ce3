"""The Strategy: it meets nodes, asks those whose turn it is, and passes their replies to the coordinator."""

import logging
import secrets
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedpdm.engines.flower.cohort.coordinator import CohortCoordinator
from fedpdm.engines.flower.job_evaluation import held_out_words
from fedpdm.engines.flower.protocol import Introduction, Meeting, Refused, Reply, Request, pack, unpack
from fedpdm.engines.flower.server.coordinator import Coordinator
from fedpdm.engines.flower.server.known_keys import KnownKeys
from fedpdm.engines.flower.server.patience import RETURN_SECONDS, Patience
from fedpdm.engines.flower.server.replies import NodeAnswer, failed, refusal
from fedpdm.errors import UserError
from fedpdm.metrics.words import metric_lines

__all__ = ["Nodes", "PrimalDual", "SecureSums", "POLL_SECONDS"]

POLL_SECONDS = 0.5
_log = logging.getLogger("flwr")


class Nodes:
    """The client of each node. Flower's node ids change after a restart; a client's number does not."""

    def __init__(self, grid: Grid, meeting: Meeting, clients: int, patience: Patience, keys: KnownKeys) -> None:
        self._grid, self._meeting, self._clients, self._patience, self._keys = grid, meeting, clients, patience, keys
        self._met: dict[int, Introduction] = {}
        self._spare: dict[int, Introduction] = {}  # nodes that claim the number of a connected client
        self._turned_away: set[int] = set()

    def connected(self) -> dict[int, int]:
        """Return client -> node id of all connected nodes; ask new nodes for their client."""
        online = set(self._grid.get_node_ids())
        self._met = {node: who for node, who in self._met.items() if node in online}
        self._spare = {node: who for node, who in self._spare.items() if node in online}
        new = online - set(self._met) - set(self._spare) - self._turned_away
        meeting = self._meeting = self._meeting._replace(challenge=secrets.token_hex(16))
        messages = [Message(pack(meeting), node, MessageType.QUERY, group_id="introduction") for node in new]
        replies = _exchange(self._grid, messages, self._patience) if messages else []
        by_request = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        for reply in replies:
            if (node := by_request.pop(reply.metadata.reply_to_message_id, None)) is not None:
                self._meet(node, reply)
        for node, who in list(self._spare.items()):
            if self._holder(who.client) is None:
                self._met[node] = self._spare.pop(node)
        return {who.client: node for node, who in self._met.items()}

    def _meet(self, node: int, reply: Message) -> None:
        try:
            if reply.has_error():
                raise failed(reply.error.reason, reply.error.code)
            who = unpack(Introduction, reply.content)
            if who.refused:
                raise refusal(who.refused)
            if not 0 <= who.client < self._clients:
                raise Refused("client", f"It claims to be client {who.client}; there are clients 0 to {self._clients - 1}.")
            self._keys.require(self._meeting, who)
        except Refused as refused:
            self._turned_away.add(node)
            _log.warning("fedpdm: node %s is not used (%s)", node, refused)
            return
        if self._holder(who.client) is not None:
            self._spare[node] = who
            _log.warning("fedpdm: client %d is connected already; node %s is kept in reserve", who.client, node)
            return
        self._met[node] = who
        _log.info("fedpdm: client %d is connected", who.client)

    def keys(self) -> dict[int, str]:
        """By which key each client that is connected is on the rosters of secure sums."""
        return {who.client: who.key for who in self._met.values()}

    def _holder(self, client: int) -> int | None:
        return next((node for node, who in self._met.items() if who.client == client), None)

    def doubt(self, client: int) -> None:
        """Replace the node of a silent client by another node that claims its number, if there is one.

        So a node that was killed and came back under a new id is found at once, and a node that merely claims to be a client
        does not replace one that answers.
        """
        node = self._holder(client)
        if node is not None and any(who.client == client for who in self._spare.values()):
            del self._met[node]
            self._turned_away.add(node)

    def wait_for(self, least: int, seconds: float) -> dict[int, int]:
        """Wait until enough clients are connected; raise an error when the time is over."""
        until, said = time.monotonic() + seconds, -1
        while len(there := self.connected()) < least:
            if len(there) != said:
                said = len(there)
                _log.info("fedpdm: waiting for clients: %d of %d are connected (at most %g s)", said, least, seconds)
            if time.monotonic() > until:
                raise UserError(
                    f"{len(there)} of {least} clients are connected after {seconds:g} s. Nothing is lost: start the nodes and "
                    "run again, or lower flower.nodes, or raise flower.wait."
                )
            time.sleep(POLL_SECONDS)
        return there


class PrimalDual(Strategy):
    """Federated rounds of any algorithm of fedpdm, from the coordinator's checkpoint.

    Parameters
    ----------
    coordinator : Coordinator
        Knows the model, the rounds and the run folder.
    nodes : Nodes
        Knows who is connected.
    least, wait
        A round begins when this many clients are connected, and waits this many seconds for them.
    """

    def __init__(self, coordinator: Coordinator, nodes: Nodes, least: int, wait: float) -> None:
        self.coordinator, self.nodes, self.least, self.wait = coordinator, nodes, least, wait
        self._asked: dict[int, Request] = {}
        self._messages: dict[int, Message] = {}  # by client; a message gets its id when it is sent

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Return the requests of the coordinator's next round to its connected clients."""
        there = self.nodes.wait_for(self.least, self.wait)
        asked = self.coordinator.requests(client for client in self.coordinator.chosen() if client in there)
        return self._ask(asked, there, MessageType.TRAIN, server_round)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """End the round with what came in; the model itself stays with the coordinator."""
        return None, self._report(*self.coordinator.take(self._asked, self._said(replies)))

    def _report(self, row: dict[str, Any], dropped: list[str], closed: str = "") -> MetricRecord:
        """Say how a round went."""
        for line in dropped:
            _log.warning("fedpdm: round %d, %s", row["round"], line)
        if closed:
            _log.warning("fedpdm: round %d: %s", row["round"], closed)
        accuracy = f", accuracy {row['test_accuracy']:.4f}" if "test_accuracy" in row else ""
        total, used, missing = self.coordinator.config.rounds.total, row["participants"], row["missing"]
        _log.info("fedpdm: round %d of %d: %d messages used, %d missing%s", row["round"], total, used, missing, accuracy)
        return MetricRecord({key: value for key, value in row.items() if isinstance(value, int | float)})

    def start(self, grid: Grid, initial_arrays: Any = None, *ignored: Any, timeout: float = 3600, **others: Any) -> Result:  # type: ignore[override]
        """Run to the end, from the last checkpoint. The model and its measurements are in the run folder."""
        result = Result()
        if self.coordinator.standards.due:
            self.standardise(grid, timeout)
        while True:
            number = self.coordinator.round
            if messages := list(self.configure_evaluate(number, ArrayRecord(), ConfigRecord(), grid)):
                measured = self.aggregate_evaluate(number, _exchange(grid, messages, timeout))
                result.evaluate_metrics_clientapp[number] = measured or MetricRecord()
            if self.coordinator.done:
                if self.coordinator.curvatures.due(number):
                    self.measure_curvature(grid, timeout)
                return result
            result.train_metrics_clientapp[number + 1] = self._one_round(grid, number + 1, timeout)

    def _one_round(self, grid: Grid, server_round: int, timeout: float) -> MetricRecord:
        messages = self.configure_train(server_round, ArrayRecord(), ConfigRecord(), grid)
        _, measured = self.aggregate_train(server_round, _exchange(grid, list(messages), timeout))
        return measured or MetricRecord()

    def standardise(self, grid: Grid, timeout: float) -> None:
        """Before the first round: ask all clients that are connected for their noised means."""
        there, standards = self.nodes.wait_for(self.least, self.wait), self.coordinator.standards
        messages = self._ask(standards.requests(there), there, MessageType.TRAIN, 0)
        clients, dropped = standards.take(self._asked, self._said(_exchange(grid, messages, timeout)))
        for line in dropped:
            _log.warning("fedpdm: means and deviations, %s", line)
        _log.info("fedpdm: means and deviations of %d clients", clients)

    def measure_curvature(self, grid: Grid, timeout: float) -> None:
        """After the last round: ask all clients that are connected for what intervals need."""
        there = self.nodes.wait_for(self.least, self.wait)
        asked = self.coordinator.evaluation_requests(there, "intervals")
        messages = self._ask(asked, there, MessageType.EVALUATE, self.coordinator.round)
        clients, dropped = self.coordinator.curvatures.take(self._asked, self._said(_exchange(grid, messages, timeout)))
        for line in dropped:
            _log.warning("fedpdm: gradients and curvature, %s", line)
        _log.info("fedpdm: gradients and curvature of %d clients", clients)

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Ask all connected clients for noised counts, after the rounds of the job's evaluation."""
        if not self.coordinator.evaluation_due():
            return []
        there = self.nodes.wait_for(self.least, self.wait)
        return self._ask(self.coordinator.evaluation_requests(there), there, MessageType.EVALUATE, server_round)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Add up the counts."""
        row, dropped = self.coordinator.evaluations.take(self._asked, self._said(replies))
        for line in dropped:
            _log.warning("fedpdm: evaluation after round %d, %s", row["round"], line)
        for line in metric_lines(row if row["clients"] else None, held_out_words(self.coordinator.job))[:2]:
            _log.info("fedpdm: after round %d, by noised counts of %d clients: %s", row["round"], row["clients"], line)
        return MetricRecord({key: value for key, value in row.items() if isinstance(value, int | float)})

    def _ask(self, asked: dict[int, Request], there: dict[int, int], kind: str, server_round: int) -> list[Message]:
        self._asked = asked
        self._messages = {
            client: Message(pack(request), there[client], kind, group_id=str(server_round)) for client, request in asked.items()
        }
        return list(self._messages.values())

    def _said(self, replies: Iterable[Message]) -> list[NodeAnswer]:
        """Return the replies by client; mark silent clients."""
        # A lost node's error comes from the SuperLink itself: only the id of the request identifies the client.
        sent = {message.metadata.message_id: client for client, message in self._messages.items()}
        said: list[NodeAnswer] = [(sent.get(m.metadata.reply_to_message_id, -1), _reply(m)) for m in replies]
        silent = sorted(set(self._asked) - {client for client, _ in said})
        for client in silent:
            self.nodes.doubt(client)
        return said + [(client, Refused("late", "No reply in time; one that comes later is not used.")) for client in silent]

    def summary(self) -> None:
        """Log the algorithm, the job and the round."""
        config = self.coordinator.config
        _log.info(
            "fedpdm: %s, job %s, from round %d", config.algorithm.name, self.coordinator.job.digest, self.coordinator.round + 1
        )
        if unchecked := self.coordinator.judge.unchecked:
            _log.warning("fedpdm: not checked: %s. See docs/hostile-clients.md.", unchecked)


class SecureSums(PrimalDual):
    """Rounds by secure sums: five exchanges each, and members that fall silent have dropped out.

    A sum begins with a longer wait for those who fell silent in the sum before: their processes may have died, and a node takes
    a minute to get a new one. Without this wait one death would count in two sums. Who stays away is not waited for again.

    Parameters
    ----------
    coordinator, nodes, least, wait
        As in `PrimalDual`.
    patience : Patience
        When a silent member has dropped out.
    """

    coordinator: CohortCoordinator

    def __init__(self, coordinator: CohortCoordinator, nodes: Nodes, least: int, wait: float, patience: Patience) -> None:
        super().__init__(coordinator, nodes, least, wait)
        self.patience = patience
        self._fell_silent: set[int] = set()  # in the sum before
        self._stay_away: set[int] = set()  # also after the longer wait, until they answer again

    def _members(self) -> dict[int, int]:
        """Wait for members, and require the keys of all."""
        there = self.nodes.wait_for(self.least, self.wait)
        self.coordinator.meet(self.nodes.keys())
        if not self.coordinator.complete:
            clients = self.coordinator.config.data.clients
            raise UserError(
                f"{len(self.coordinator.keys)} of the cohort's {clients} members have been met: a sum needs the keys of all, "
                "even if some of them drop out later. Start the others and run again."
            )
        return there

    def standardise(self, grid: Grid, timeout: float) -> None:
        """Before the first round: one sum of the members' second moments."""
        there = self._members()

        def exchange(asked: dict[int, Request]) -> list[NodeAnswer]:
            return self._said(_exchange(grid, self._ask(asked, there, MessageType.TRAIN, 0), self.patience))

        count, dropped = self.coordinator.sum_moments(exchange, there)
        for line in dropped:
            _log.warning("fedpdm: second moments, %s", line)
        _log.info("fedpdm: the sum of the second moments of %d members", count)

    def _one_round(self, grid: Grid, server_round: int, timeout: float) -> MetricRecord:
        there = self._members()
        back, self._fell_silent = self._fell_silent & there.keys(), set()
        if back:
            _log.info("fedpdm: waiting at most %g s for clients that fell silent: %s", RETURN_SECONDS, sorted(back))

        def exchange(asked: dict[int, Request]) -> list[NodeAnswer]:
            nonlocal back
            patience = self.patience._replace(least=RETURN_SECONDS) if back else self.patience
            said = self._said(_exchange(grid, self._ask(asked, there, MessageType.TRAIN, server_round), patience))
            silent = {client for client, answer in said if isinstance(answer, Refused) and answer.name in ("late", "node")}
            self._stay_away = (self._stay_away | silent & back) - (asked.keys() - silent)
            self._fell_silent |= silent - self._stay_away
            back = set()
            return said

        return self._report(*self.coordinator.one_round(exchange, there))


def _reply(message: Message) -> Reply | Refused:
    """Return the content of a message from outside, or the reason for its refusal."""
    if message.has_error():
        return failed(message.error.reason, message.error.code)
    try:
        return unpack(Reply, message.content)
    except Refused as refused:
        return refused


def _exchange(grid: Grid, messages: list[Message], patience: float | Patience) -> list[Message]:
    """Send the messages and collect replies until there is one to each or the time is over.

    Flower's own `send_and_receive` does the same, but checks only every three seconds.
    """
    waiting = {name for name in grid.push_messages(messages) if name}
    patience, began = patience if isinstance(patience, Patience) else Patience(patience), time.monotonic()
    replies: list[Message] = []
    times: list[float] = []
    while waiting:
        passed = time.monotonic() - began
        over = passed >= patience.limit(len(messages), times)  # before the last look: what came while this slept is still taken
        replies += (new := list(grid.pull_messages(list(waiting))))
        times += [time.monotonic() - began for _ in new]
        waiting -= {message.metadata.reply_to_message_id for message in new}
        if over:
            break
        time.sleep(POLL_SECONDS if waiting else 0)
    return replies
