"""The server's rounds: the requests to clients, the use of their replies, and a checkpoint after every round.

It does not depend on Flower: `requests` returns the messages to send, `take` gets the replies.
"""

import math
import time
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.compression.links import Downlink, first_downlink, send_down, shared_support
from fedpdm.compression.messages import Received, encode_broadcast, receive
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Reply, Request
from fedpdm.engines.flower.server.curvature import Curvatures
from fedpdm.engines.flower.server.evaluations import Evaluations
from fedpdm.engines.flower.server.judge import Judge
from fedpdm.engines.flower.server.replies import NodeAnswer, require_enough, valid_replies
from fedpdm.engines.flower.server.run_folder import describe_asked, epsilon_at_most, guarantee, names_of
from fedpdm.engines.flower.server.standard import Standards
from fedpdm.engines.flower.server.state import CoordinatorState, RoundTraffic, shares_of
from fedpdm.engines.simulation.measures import (
    LINKS,
    TestSet,
    add_traffic,
    figure_name,
    make_row,
    paper_bits,
    tail_average,
    tail_start,
    traffic_totals,
)
from fedpdm.engines.simulation.state import initial_model
from fedpdm.errors import UserError
from fedpdm.hostile.check import STRIKES
from fedpdm.participation import Roster, roster
from fedpdm.rounds import server_round, travel_at
from fedpdm.runs.folder import RunFolder
from fedpdm.runs.record import RunRecord

__all__ = ["Coordinator"]

NAME_BYTES = 16  # of a message's name


class Coordinator:
    """The rounds of one job, from the folder's checkpoint if there is one.

    Parameters
    ----------
    job : Job
        Settings, names and schema, as the clients hold them.
    folder : RunFolder
        The server's run folder.
    test : TestSet or None
        The server's public examples for test accuracy.
    least : int
        Messages that must be used in a round; 0: half of the round's clients.
    """

    def __init__(self, job: Job, folder: RunFolder, test: TestSet | None, least: int = 0):
        self._least, self.judge = least, Judge(job)
        self.job, self.config, self.folder, self.noise = job, job.config, folder, job.noise
        self.original_test = test
        self.setup, self.plan = job.setup
        self.record = RunRecord(job.config, folder, names_of(job))
        self._roster = self._choose()
        state, self.round = self.record.begin(self._first_state(job.shape))
        self.state: CoordinatorState = jax.tree.map(jnp.asarray, state)
        self.evaluations, self.standards = Evaluations(job, folder.path), Standards(job, folder.path)
        self.curvatures = Curvatures(job, folder.path)
        self.shares = shares_of(job)
        self._began = time.perf_counter()
        self._sent: tuple[Any, Downlink] | None = None  # broadcast and notes of the round that is under way

    def _choose(self) -> Roster:
        """The clients of every round."""
        return roster(self.config.rounds.sampling, **self._how())

    def _how(self) -> dict[str, Any]:
        config, r = self.config, self.config.rounds
        how = {"rounds": r.total, "clients": config.data.clients, "participants": r.participants, "seed": config.seed}
        return how | {"all_first": r.all_first, "cap": self.plan.participations if self.plan else 0}

    def _first_state(self, shape: tuple[int, int]) -> CoordinatorState:
        clients, algorithm = self.config.data.clients, self.setup.algorithm
        x0 = initial_model(self.config.seed, shape, self.config.rounds.initial_scale)
        server = algorithm.init_server(x0, clients)
        return CoordinatorState(
            server,
            first_downlink(algorithm.broadcast(server), clients),
            jnp.zeros_like(x0),
            jnp.zeros((clients, NAME_BYTES), jnp.uint8),
            jnp.zeros(clients, jnp.int32),
            jnp.zeros(clients, jnp.int32),
            jnp.zeros((len(LINKS), 2), jnp.int32),
            self.judge.first(x0),
            jnp.zeros(clients, jnp.int32),
        )

    @property
    def done(self) -> bool:
        return self.round >= self.config.rounds.total

    @property
    def model(self) -> np.ndarray:
        return np.asarray(self.state.server.x0)

    def chosen(self) -> list[int]:
        """The clients of the next round."""
        clients, present = self._roster[self.round]
        return [int(client) for client in clients[present] if client not in self.left_out()]

    def left_out(self) -> list[int]:
        """The clients whose messages were refused so often that they are not asked any more."""
        return np.flatnonzero(np.asarray(self.state.refused) >= STRIKES).tolist()

    def evaluation_due(self) -> bool:
        """Whether clients should now evaluate the model."""
        return self.evaluations.due(self.round)

    def evaluation_requests(self, clients: Iterable[int], task: str = "evaluate") -> dict[int, Request]:
        """Return the requests about the model after the last round, or at the end about the released one."""
        state, server = self.state, self.state.server
        if self.done and self.config.metrics.released == "averaged":
            server = server._replace(x0=jnp.asarray(self.averaged_model))
        whole = self.setup.algorithm.broadcast(server)
        asked, t = jnp.asarray(sorted(clients), jnp.int32), jnp.int32(self.round)
        _, downlink, _ = send_down(
            self.setup.links._replace(downlink=1.0),
            state.downlink,
            whole,
            asked,
            jnp.ones(len(asked), bool),
            t,
            jnp.float32(0.0),
        )
        vectors = encode_broadcast(self.setup.links, downlink)
        evaluated = task == "evaluate"
        named = {int(client): self.evaluations.accepted(int(client)) if evaluated else "" for client in np.asarray(asked)}
        what, standard = (task, self.job.digest, self.round - 1), self.standards.message
        return {client: Request(*what, client, name, vectors, standard) for client, name in named.items()}

    def requests(self, clients: Iterable[int]) -> dict[int, Request]:
        """Return the next round's requests to these clients."""
        asked = np.array(sorted(clients), np.int32)
        whole, state = self.setup.algorithm.broadcast(self.state.server), self.state
        present = jnp.ones(len(asked), bool)
        broadcast, downlink, _ = send_down(
            self.setup.links, state.downlink, whole, jnp.asarray(asked), present, jnp.int32(self.round), jnp.float32(0.0)
        )
        vectors = encode_broadcast(self.setup.links, downlink)
        self._sent = broadcast, downlink
        what, standard = ("train", self.job.digest, self.round), self.standards.message
        return {int(c): Request(*what, int(c), self._last_used(int(c)), vectors, standard) for c in asked}

    def _last_used(self, client: int) -> str:
        """Return the name of this client's last message that was used."""
        name = np.asarray(self.state.accepted[client])
        return bytes(name).hex() if np.any(name) else ""

    def take(self, asked: dict[int, Request], replies: Iterable[NodeAnswer]) -> tuple[dict[str, Any], list[str]]:
        """End the round with its replies; return the row of measurements, and a line for every reply that is not used.

        `replies` are pairs of a node's client and its answer. A reply that is malformed, late, replayed, not finite, not
        requested, or that no honest client could have sent, never reaches the model.
        """
        assert self._sent is not None, "requests first"
        messages, dropped = valid_replies(asked, replies)
        received, far = self._judged(self._receive(messages))
        dropped += [f"client {client}: {reason}" for client, reason in {**far, **received.refused}.items()]
        used = {client: reply for client, reply in messages.items() if client not in received.refused and client not in far}
        require_enough(self.round, len(used), int(self._roster[self.round][1].sum()), self._least, dropped)
        server = self.state.server
        if used:
            server = server_round(self.setup, server, self._sent[0], received.reports)
        self._require_finite(server)
        sizes = RoundTraffic.none().more(asked, used)._replace(asked=list(asked), indices=received.index_bytes)
        told = self.judge.after(self._sent[0], self.state.told, received.reports)
        refused = self.state.refused.at[np.array([*far, *received.refused], np.int32)].add(1)
        self.state = self.state._replace(told=told, refused=refused)
        self._move_on(server, self._sent[1], used, sizes)
        self._sent = None
        return self._write(self._row(len(used), len(asked) - len(used))), dropped

    def _require_finite(self, server: Any) -> None:
        if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(server)):
            raise UserError(
                f"Round {self.round + 1} would make the model NaN or infinite: stopped at the checkpoint before it."
            )

    def _write(self, row: dict[str, Any]) -> dict[str, Any]:
        """Keep the row of the round that is over, and a checkpoint."""
        self._checkpoint(row)
        return row

    def _checkpoint(self, *rows: dict[str, Any]) -> None:
        try:
            self.record.add(list(rows))
            self.record.checkpoint(self.state, self.round)
        except OSError as error:
            raise UserError(
                f"{self.folder.path} cannot be written: {error.strerror}. Free some space and run again: it continues from its "
                "last checkpoint, and what was released stays on the clients' ledgers."
            ) from None

    def _receive(self, messages: dict[int, Reply]) -> Received:
        assert self._sent is not None
        broadcast, setup, t = self._sent[0], self.setup, self.round
        support = shared_support(setup.links, self.config.seed, t, broadcast.x0)
        vectors = {client: reply.vectors for client, reply in messages.items()}
        travel = travel_at(setup, t, setup.local.steps)
        found = receive(setup.links, setup.algorithm.silent(broadcast), vectors, support, travel)
        if self.shares is None:
            return found
        return found._replace(reports=found.reports._replace(shares=jnp.asarray(self.shares[found.reports.clients])))

    def _judged(self, received: Received) -> tuple[Received, dict[int, str]]:
        """Leave out the messages that no honest client could have sent; also return why, by client."""
        assert self._sent is not None
        broadcast, reports = self._sent[0], received.reports
        support = shared_support(self.setup.links, self.config.seed, self.round, broadcast.x0)
        present, far = self.judge.look(broadcast, self.state.told, reports, self.round, support)
        return received._replace(reports=reports._replace(present=present)), far

    def _move_on(self, server: Any, downlink: Downlink, used: dict[int, Reply], sizes: RoundTraffic) -> None:
        """Compute the state after this round."""
        state, accepted = self.state, np.array(self.state.accepted)
        for client, reply in used.items():
            accepted[client] = list(bytes.fromhex(reply.message))
        each = [(sizes.up.get(client, 0), down, sizes.indices.get(client, 0)) for client, down in sizes.down.items()]
        self.state = state._replace(
            server=server,
            downlink=downlink,
            tail_sum=state.tail_sum + (server.x0 if self.round >= self._tail_start else 0.0),
            accepted=jnp.asarray(accepted),
            asked=state.asked.at[np.array(sizes.asked, np.int32)].add(1),
            used=state.used.at[np.array(list(used), np.int32)].add(1),
            traffic=add_traffic(state.traffic, jnp.array(each, jnp.int32).reshape(-1, len(LINKS)).T),
        )
        self.round += 1

    @property
    def _tail_start(self) -> int:
        return tail_start(self.config.rounds.total, self.config.metrics.tail)

    def _row(self, used: int, missing: int) -> dict[str, Any]:
        x0, links, r = self.state.server.x0, self.setup.links, self.config.rounds
        due = self.round % self.config.metrics.evaluate_every == 0 or self.done
        measured = {
            figure_name(self.setup.problem): self.test.measure(self.setup.problem, x0) if self.test and due else math.nan,
            "nonzero_fraction": float(jnp.mean(x0 != 0)),
        }
        counts = {"round": self.round, "participants": used, "missing": missing}
        return make_row(counts, measured, self.traffic(), paper_bits(links, x0.size, self.round, r.participants))

    @property
    def test(self) -> TestSet | None:
        """The server's examples as the model in training sees them."""
        found, test = self.standards.standard, self.original_test
        return test if found is None or test is None else test._replace(features=found.apply(np.asarray(test.features)))

    def traffic(self) -> dict[str, int]:
        """Bytes of the messages that were used ("uplink", "index" for their indices), and of those sent down ("downlink")."""
        return traffic_totals(np.asarray(self.state.traffic))

    def taken_part(self) -> np.ndarray:
        """How many messages of every client were used."""
        return np.asarray(self.state.used)

    @property
    def averaged_model(self) -> np.ndarray:
        """The mean of x0 over the tail of the rounds."""
        return tail_average(self.state.tail_sum, self.model, self.round, self._tail_start)

    def finish(self) -> dict[str, Any]:
        """Write models, clients and summary."""
        asked, used, plan = np.asarray(self.state.asked), self.taken_part(), self.plan
        others = self.evaluations.multipliers() + self.standards.multipliers() + self.curvatures.multipliers()

        def epsilon(often: int) -> float | None:
            return epsilon_at_most(plan, often, others) if plan and self.noise == "secure" else None

        more = {
            "engine": "flower",
            "messages_asked_for": int(asked.sum()),
            "messages_used": int(used.sum()),
            "messages_refused": int(jnp.sum(self.state.refused)),
            "left_out": self.left_out(),
            "unchecked": self.judge.unchecked,
            "evaluation": self.evaluations.last(),
            **self._figures(),
            **guarantee(self.job, asked, used, others),
        }
        clients = describe_asked(asked, used, np.asarray(self.state.refused), epsilon, self.test, self.model.shape[0])
        standard = self.standards.standard
        model = self.averaged_model if self.config.metrics.released == "averaged" else self.model
        found = self.curvatures.intervals(model, self.shares, standard)
        seconds = time.perf_counter() - self._began
        return self.record.finish(self, seconds, 0.0, clients, more, standard, intervals=found)

    def _figures(self) -> dict[str, Any]:
        """The clients' last evaluation in the place of test figures, if there are no test rows; it is of all weights."""
        fits = self.test is None and self.config.problem.sparsity is None
        return self.evaluations.figures(self.round) if fits else {}
