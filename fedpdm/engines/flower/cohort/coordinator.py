"""The server's rounds by secure sums: five steps each, a run folder, and a checkpoint before and after every sum.

It knows nothing of Flower: an `exchange` sends requests and brings answers.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.algorithms.base import Broadcast, Reports
from fedpdm.engines.flower.cohort.agreement import agree_on, public_work
from fedpdm.engines.flower.cohort.node import pack_vectors
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import STEPS, Reply, Request
from fedpdm.engines.flower.server.coordinator import Coordinator
from fedpdm.engines.flower.server.replies import NodeAnswer, valid_replies
from fedpdm.engines.flower.server.state import CoordinatorState, RoundTraffic
from fedpdm.engines.simulation.measures import TestSet
from fedpdm.engines.simulation.state import initial_model
from fedpdm.errors import UserError
from fedpdm.hostile.check import STRIKES
from fedpdm.rounds import ClientResult, open_cohort, server_round, travel_at
from fedpdm.runs.folder import RunFolder, atomic_write
from fedpdm.runs.integrity import read_sealed, sealed
from fedpdm.secure_sums.messages import ProtocolError, pack
from fedpdm.secure_sums.server import SumServer
from fedpdm.secure_sums.terms import Terms

__all__ = ["CohortCoordinator", "Exchange"]

# from requests by client to the answers; a client that does not answer, or refuses, has dropped out
Exchange = Callable[[dict[int, Request]], Iterable[NodeAnswer]]
ROSTER = "roster.json"


class CohortCoordinator(Coordinator):
    """The rounds of one job of secure sums, from the folder's checkpoint if there is one.

    A sum that was under way when the server's process ended stays closed: members take part in one sum per round. Its round
    counts as one without participants.

    Parameters
    ----------
    job, folder, test
        As in `Coordinator`; the job has privacy.trust=cohorts.
    """

    def __init__(self, job: Job, folder: RunFolder, test: TestSet | None) -> None:
        self.agreement = agree_on(job)
        self.sum: np.ndarray | None = None  # the words of the last round's sum, if it was opened
        self._refused_sums = 0  # in a row
        super().__init__(job, folder, test)
        path = folder.path / ROSTER
        known = read_sealed(path, "put the backup of it back, or begin a new job") if path.exists() else {}
        self.keys: dict[int, str] = {int(client): key for client, key in known.items()}
        if int(self.state.begun) > self.round:
            self._end({}, RoundTraffic.none(), None)

    def _first_state(self, shape: tuple[int, int]) -> CoordinatorState:
        algorithm, scale = self.setup.algorithm, self.config.rounds.initial_scale
        x0 = initial_model(self.config.seed, shape, scale)
        first = super()._first_state(shape)
        cohort = {"server": algorithm.init_server(x0, 1), "cohort": algorithm.init_client(x0), "told": ()}
        return first._replace(**cohort, begun=jnp.int32(0))

    @property
    def complete(self) -> bool:
        """Whether the key of every client is known: without all of them there is no roster, and no sum."""
        return len(self.keys) == self.config.data.clients

    def meet(self, keys: Mapping[int, str]) -> None:
        """Note by which key each client is on the rosters; it is the same for the whole job."""
        for client, key in keys.items():
            if self.keys.setdefault(client, key) != key:
                raise UserError(
                    f"Client {client} has another key than before: its peers' policies list the old one. Restore identity.key "
                    "in its state folder, or begin a new job."
                )
        atomic_write(self.folder.path / ROSTER, sealed({str(client): key for client, key in self.keys.items()}))

    def terms(self) -> Terms:
        """Those of the next round's sum."""
        return self.agreement.terms(self.round, tuple(sorted(self.keys.values())))

    def one_round(self, exchange: Exchange, clients: Iterable[int]) -> tuple[dict[str, Any], list[str], str]:
        """One sum of these clients, and the model that follows from it.

        Returns the row of measurements, a line for every answer that is not used, and why the sum stayed closed or is not
        used, if so: then the model stays as it is.
        """
        terms = self.terms()
        server, self.sum = SumServer(terms), None
        there = {terms.number_of(self.keys[client]): client for client in sorted(clients)}
        self.state = self.state._replace(begun=jnp.int32(self.round + 1))
        self._checkpoint()
        dropped: list[str] = []
        sizes, messages, closed = RoundTraffic.none(), {}, ""
        try:
            for step, name in enumerate(STEPS):
                asked = self._requests(server, name, there)
                heard, lines = valid_replies(asked, exchange(asked))
                dropped += [f"step {name}, {line}" for line in lines]
                sizes = sizes.more(asked, heard)
                if name == "masked":
                    sizes, messages = sizes._replace(asked=list(asked)), heard
                there = {n: c for n, c in there.items() if c in heard and self._taken(server, step, n, heard[c], dropped)}
            self.sum = server.open()
            closed = self._far(self.sum, len(server.survivors))
            self._refused_sums = self._refused_sums + 1 if closed else 0
        except ProtocolError as error:
            closed = str(error)
        used = {} if closed else {c: r for c, r in messages.items() if terms.number_of(self.keys[c]) in server.survivors}
        row = self._end(used, sizes, None if closed else self.sum)
        self._require_sums(closed)
        return row, dropped, closed

    def _require_sums(self, closed: str) -> None:
        """Stop where sum after sum is refused: every further one costs all members a release, and teaches the model nothing."""
        if self._refused_sums >= STRIKES:
            raise UserError(
                f"{self._refused_sums} sums in a row were refused. The last one: {closed} A member is hostile or broken, and "
                "further sums would spend all budgets for nothing. Find it, and begin a new job without it, or run again."
            )

    def _requests(self, server: SumServer, name: str, there: Mapping[int, int]) -> dict[int, Request]:
        """A step for everybody who is still there; a ProtocolError where too few are."""
        makes = {"advertise": server.invitation, "pieces": server.all_keys}
        makes |= {"agree": server.survivors_list, "reveal": server.agreements}
        common, vectors = makes[name]() if name in makes else b"", b""
        if name == "masked":
            broadcast = self.setup.algorithm.broadcast(self.state.server)
            vectors = pack_vectors([np.asarray(leaf) for leaf in jax.tree.leaves((broadcast, self.state.cohort))])
        asked = {}
        for number, client in there.items():
            content = pack("step", [common or server.pieces_for(number), vectors])
            accepted = self._last_used(client) if name == "masked" else ""
            asked[client] = Request(name, self.job.digest, self.round, client, accepted, content)
        return asked

    def _taken(self, server: SumServer, step: int, number: int, reply: Reply, dropped: list[str]) -> bool:
        """Whether a member is still there: one that says something wrong has dropped out."""
        takes = (server.take_keys, server.take_pieces, server.take_masked, server.take_agreement, server.take_reveal)
        try:
            takes[step](number, reply.vectors)
        except ProtocolError as error:
            dropped.append(f"step {STEPS[step]}, member {number}: {error}")
            return False
        return True

    def _end(self, used: dict[int, Any], sizes: RoundTraffic, words: np.ndarray | None) -> dict[str, Any]:
        """The state after this round, its row and its checkpoint."""
        server, cohort = (self.state.server, self.state.cohort) if words is None else self._opened(words, len(used))
        self._require_finite(server)
        self.state = self.state._replace(cohort=cohort)
        self._move_on(server, self.state.downlink, used, sizes)
        return self._write(self._row(len(used), self.config.data.clients - len(used)))

    def _cohort(self, words: np.ndarray, count: int) -> tuple[Broadcast, ClientResult]:
        """What the members were sent, and the virtual client that the sum of so many of them makes."""
        a, t = self.agreement, self.round
        broadcast = a.setup.algorithm.broadcast(self.state.server)
        of = jnp.float32(count), jnp.float32(count)  # all have as many slots, so every weight is 1
        return broadcast, open_cohort(a.setup, jnp.asarray(words), of, public_work(a, t), self.state.cohort, broadcast, t)

    def _far(self, words: np.ndarray, count: int) -> str:
        """Why the sum is not used: no honest members have it; "" if they could."""
        broadcast, result = self._cohort(words, count)
        why = self.judge.look_at_sum(broadcast, self.state.cohort, result, self.round)
        return f"The sum is refused ({why.rstrip('.')}); whose contribution it was, nobody can tell." if why else ""

    def _opened(self, words: np.ndarray, count: int) -> tuple[Any, Any]:
        """The server's and the cohort's state behind the sum of so many members."""
        a, t = self.agreement, self.round
        broadcast, result = self._cohort(words, count)
        messages = jax.tree.map(lambda leaf: leaf[None], result.message)
        travel = travel_at(a.setup, t, a.setup.local.steps)
        reports = Reports(messages, jnp.zeros(1, jnp.int32), jnp.ones(1, bool), None, travel)
        return server_round(a.setup, self.state.server, broadcast, reports), result.state
