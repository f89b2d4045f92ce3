"""The server's rounds: whom to ask for what, what to take of the replies, and a checkpoint after every round.

It knows nothing of Flower: `requests` says what to send, `take` is given what came in.
"""

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.compression.links import Downlink, first_downlink, send_down, shared_support
from fedpdm.compression.messages import Received, encode_broadcast, receive
from fedpdm.compression.sparsify import coordinate_count
from fedpdm.config import digest
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Reply, Request
from fedpdm.engines.flower.server.evaluations import Evaluations
from fedpdm.engines.flower.server.replies import NodeAnswer, valid_replies
from fedpdm.engines.flower.server.run_folder import NOISE_NOTES
from fedpdm.engines.simulation.state import initial_model
from fedpdm.errors import UserError
from fedpdm.participation import roster
from fedpdm.privacy.accounting import compose_gdp, effective_multiplier, gdp_epsilon
from fedpdm.problem.objective import accuracy
from fedpdm.rounds import server_round, travel_at
from fedpdm.runs.folder import RunFolder

__all__ = ["Coordinator", "CoordinatorState", "TestSet"]

NAME_BYTES = 16  # of a message's name


class CoordinatorState(NamedTuple):
    """All that must survive the server's process."""

    server: Any
    downlink: Downlink
    tail_sum: Array
    accepted: Array  # [clients, 16] uint8: the name of each client's last message that was used; zeros: none
    asked: Array  # [clients] how often each client was asked: an upper bound on its participations
    used: Array  # [clients] how many of its messages were used
    traffic: Array  # [2] mebibytes and bytes, up; [2] down


class TestSet(NamedTuple):
    """What the server measures accuracy with; nobody's private data."""

    features: np.ndarray
    labels: np.ndarray


class Coordinator:
    """The rounds of one job, from the folder's checkpoint if there is one."""

    def __init__(self, job: Job, folder: RunFolder, test: TestSet | None):
        self.job, self.config, self.folder, self.noise, self.test = job, job.config, folder, job.noise, test
        self.setup, self.plan = job.setup
        config, r = self.config, self.config.rounds
        self._roster = roster(
            r.sampling,
            rounds=r.total,
            clients=config.data.clients,
            participants=r.participants,
            seed=config.seed,
            all_first=r.all_first,
            cap=self.plan.participations if self.plan else 0,
        )
        self.round, self.state = 0, self._first_state(job.shape)
        if checkpoint := folder.load_checkpoint(self.state, digest(config)):
            state, self.round = checkpoint
            self.state = jax.tree.map(jnp.asarray, state)
        self.evaluations = Evaluations(job, folder.path)
        self._began = time.perf_counter()
        self._sent: tuple[Any, Downlink, int] | None = None  # broadcast, notes, bytes of the round that is under way

    def _first_state(self, shape: tuple[int, int]) -> CoordinatorState:
        clients, algorithm = self.config.data.clients, self.setup.algorithm
        x0 = initial_model(self.config.seed, shape)
        server = algorithm.init_server(x0, clients)
        return CoordinatorState(
            server,
            first_downlink(algorithm.broadcast(server), clients),
            jnp.zeros_like(x0),
            jnp.zeros((clients, NAME_BYTES), jnp.uint8),
            jnp.zeros(clients, jnp.int32),
            jnp.zeros(clients, jnp.int32),
            jnp.zeros((2, 2), jnp.int32),
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
        return [int(client) for client in clients[present]]

    def evaluation_due(self) -> bool:
        """Whether clients are to be asked for noised counts of the model as it is now."""
        return self.evaluations.due(self.round)

    def evaluation_requests(self, clients: Iterable[int]) -> dict[int, Request]:
        """What these clients are asked; the model is the one after the last round."""
        state, whole = self.state, self.setup.algorithm.broadcast(self.state.server)
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
        return {int(c): Request("evaluate", self.job.digest, self.round - 1, int(c), "", vectors) for c in np.asarray(asked)}

    def requests(self, clients: Iterable[int]) -> dict[int, Request]:
        """The next round's requests to these of its clients."""
        asked = np.array(sorted(clients), np.int32)
        whole, state = self.setup.algorithm.broadcast(self.state.server), self.state
        present = jnp.ones(len(asked), bool)
        broadcast, downlink, _ = send_down(
            self.setup.links, state.downlink, whole, jnp.asarray(asked), present, jnp.int32(self.round), jnp.float32(0.0)
        )
        vectors = encode_broadcast(self.setup.links, downlink)
        self._sent = broadcast, downlink, len(vectors)
        names = [bytes(np.asarray(name)).hex() if np.any(name) else "" for name in np.asarray(state.accepted)]
        return {
            int(client): Request("train", self.job.digest, self.round, int(client), names[client], vectors) for client in asked
        }

    def take(self, asked: dict[int, Request], replies: Iterable[NodeAnswer]) -> tuple[dict[str, Any], list[str]]:
        """End the round with what came in: the row of measurements, and a line for every reply that is not used.

        `replies` are pairs of the client that a node stands for and what it said. Nothing of a reply that is malformed, late,
        replayed, not finite, or not asked for reaches the model.
        """
        assert self._sent is not None, "requests first"
        messages, dropped = valid_replies(asked, replies)
        received = self._receive(messages)
        dropped += [f"client {client}: {reason}" for client, reason in received.refused.items()]
        used = {client: reply for client, reply in messages.items() if client not in received.refused}
        server = self.state.server
        if used:
            server = server_round(self.setup, server, self._sent[0], received.reports)
        if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(server)):
            raise UserError(
                f"Round {self.round + 1} would make the model NaN or infinite: stopped at the checkpoint before it."
            )
        self._move_on(server, asked, used)
        row = self._row(len(used), len(asked) - len(used))
        try:
            self.folder.append([row])
            self.folder.save_checkpoint(self.state, self.round, digest(self.config))
        except OSError as error:
            raise UserError(
                f"{self.folder.path} cannot be written: {error.strerror}. Make room and run again: it goes on from round "
                f"{self.round}, and the clients send the same messages again."
            ) from None
        return row, dropped

    def _receive(self, messages: dict[int, Reply]) -> Received:
        assert self._sent is not None
        broadcast, setup, t = self._sent[0], self.setup, self.round
        support = shared_support(setup.links, self.config.seed, t, broadcast.x0)
        vectors = {client: reply.vectors for client, reply in messages.items()}
        travel = travel_at(setup, t, setup.local.steps)
        return receive(setup.links, setup.algorithm.silent(broadcast), vectors, support, travel)

    def _move_on(self, server: Any, asked: dict[int, Request], used: dict[int, Reply]) -> None:
        """The state after this round."""
        assert self._sent is not None
        state, (_, downlink, down_bytes) = self.state, self._sent
        accepted = np.array(state.accepted)
        for client, reply in used.items():
            accepted[client] = list(bytes.fromhex(reply.message))
        up_bytes = sum(len(reply.vectors) for reply in used.values())
        self.state = state._replace(
            server=server,
            downlink=downlink,
            tail_sum=state.tail_sum + (server.x0 if self.round >= self._tail_start else 0.0),
            accepted=jnp.asarray(accepted),
            asked=state.asked.at[np.array(list(asked), np.int32)].add(1),
            used=state.used.at[np.array(list(used), np.int32)].add(1),
            traffic=_add(state.traffic, up_bytes, down_bytes * len(asked)),
        )
        self.round, self._sent = self.round + 1, None

    @property
    def _tail_start(self) -> int:
        total = self.config.rounds.total
        return min(int(total * (1 - self.config.metrics.tail)), total - 1)

    def _row(self, used: int, missing: int) -> dict[str, Any]:
        r, size, x0 = self.config.rounds, self.model.size, self.state.server.x0
        row: dict[str, Any] = {"round": self.round, "participants": used, "missing": missing}
        due = self.round % self.config.metrics.evaluate_every == 0 or self.done
        if self.test is not None and due:
            row["test_accuracy"] = self.test_accuracy(x0)
        row["nonzero_fraction"] = float(f"{float(jnp.mean(x0 != 0)):.7g}")
        up, down = self.traffic()
        c = self.config.compression
        row |= {"uplink_bytes": up, "downlink_bytes": down}
        for link, share in (("uplink", c.uplink), ("downlink", c.downlink)):
            row[f"{link}_bits_paper"] = 32 * coordinate_count(share, size) * self.round * r.participants
        return row

    def traffic(self) -> tuple[int, int]:
        """Bytes of all messages that were used, and of all that were sent down."""
        up, down = ((int(high) << 20) + int(low) for high, low in np.asarray(self.state.traffic))
        return up, down

    def test_accuracy(self, model: Any) -> float:
        assert self.test is not None
        value = accuracy(self.setup.problem, jnp.asarray(model), jnp.asarray(self.test.features), jnp.asarray(self.test.labels))
        return round(float(value), 7)

    def averaged_model(self) -> np.ndarray:
        count = self.round - self._tail_start
        return np.asarray(self.state.tail_sum) / count if count > 0 else self.model

    def finish(self) -> dict[str, Any]:
        """Write the models and the summary."""
        last = {key: value for row in self.folder.rows() for key, value in row.items()}
        averaged = self.averaged_model()
        summary: dict[str, Any] = {
            "test_accuracy": self.test_accuracy(self.model) if self.test else None,
            "test_accuracy_averaged": self.test_accuracy(averaged) if self.test else None,
            "objective": None,  # would need the clients' data
            "nonzero_fraction": last["nonzero_fraction"],
            "stationarity": None,
            "rounds": self.round,
            "seconds": round(time.perf_counter() - self._began, 3),
            "compile_seconds": 0.0,
            **{key: value for key, value in last.items() if key.endswith(("_bytes", "_bits_paper"))},
            "mechanism": self.config.privacy.mechanism,
            "epsilon": None,
            "delta": None,
            "relation": None,
            "guarantee": "No privacy mechanism was on: this run guarantees nothing about the examples.",
            "remark": None,
            "engine": "flower",
            "messages_asked_for": int(jnp.sum(self.state.asked)),
            "messages_used": int(jnp.sum(self.state.used)),
            "evaluation": self.evaluations.last(),
        } | self._guarantee()
        about = {"data": self.config.data.name, "loss": self.config.problem.loss}
        self.folder.finish({"model": self.model, "averaged_model": averaged}, about, summary)
        return summary

    def _guarantee(self) -> dict[str, Any]:
        """From how often the busiest client was asked: it cannot have answered more often."""
        plan = self.plan
        if plan is None:
            return {}
        most = min(int(jnp.max(self.state.asked)), plan.participations)
        releases = [plan.cost_multiplier()] * most + self.evaluations.multipliers()
        effective = [effective_multiplier(z, plan.relation) for z in releases]
        epsilon = gdp_epsilon(compose_gdp(effective), plan.delta) if effective else 0.0
        protected = self.noise == "secure"
        return {
            "epsilon": epsilon if protected else None,
            "delta": plan.delta,
            **plan.terms(),
            "refused_participations": int(jnp.sum(self.state.asked) - jnp.sum(self.state.used)),
            "guarantee": plan.sentence(epsilon) if protected else f"Nothing is guaranteed: {NOISE_NOTES['simulation']}",
        }


def _add(traffic: Array, up: int, down: int) -> Array:
    """The totals in two words each: 32 bits would not do."""
    whole = [(int(high) << 20) + int(low) + more for (high, low), more in zip(np.asarray(traffic), (up, down), strict=True)]
    return jnp.array([[total >> 20, total & (2**20 - 1)] for total in whole], jnp.int32)
