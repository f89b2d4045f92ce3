"""The server's rounds by secure sums. It does not depend on Flower: an `exchange` sends steps and returns answers."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.algorithms.base import Reports
from fedpdm.engines.flower.cohort.agreement import agree_on, public_work
from fedpdm.engines.flower.cohort.node import Step, pack_vectors
from fedpdm.engines.flower.job import Job
from fedpdm.engines.simulation.state import initial_model
from fedpdm.rounds import open_cohort, server_round, travel_at
from fedpdm.secure_sums.messages import ProtocolError
from fedpdm.secure_sums.server import SumServer
from fedpdm.secure_sums.terms import Terms

__all__ = ["CohortTraining", "Exchange", "RoundOutcome"]

STEPS = ("advertise", "pieces", "masked", "agree", "reveal")
# client -> step, to client -> answer: a client that does not answer, or refuses, is missing
Exchange = Callable[[Mapping[int, Step]], Mapping[int, bytes]]


class RoundOutcome(NamedTuple):
    """The end of a round."""

    survivors: tuple[int, ...]  # clients whose shares are in the sum; none if it stayed closed
    closed: str = ""  # why
    words: np.ndarray | None = None  # the sum itself


class CohortTraining:
    """Training of one cohort.

    Parameters
    ----------
    job
        A job with privacy.trust=cohorts; members hold it too.
    keys
        Client -> public key.
    """

    def __init__(self, job: Job, keys: Mapping[int, str]) -> None:
        self.job, self.keys = job, dict(keys)
        self.agreement = agree_on(job)
        algorithm, x0 = self.agreement.setup.algorithm, initial_model(job.config.seed, job.shape)
        self.server, self.state, self.round = algorithm.init_server(x0, 1), algorithm.init_client(x0), 0

    @property
    def model(self) -> np.ndarray:
        """The global model x0."""
        return np.asarray(self.server.x0)

    def terms(self) -> Terms:
        """Return the terms of the next round's sum."""
        return self.agreement.terms(self.round, tuple(sorted(self.keys.values())))

    def one_round(self, exchange: Exchange) -> RoundOutcome:
        """Run one sum and compute the next model; a sum that stays closed leaves the model unchanged."""
        terms = self.terms()
        server = SumServer(terms)
        clients = {terms.number_of(key): client for client, key in self.keys.items()}
        try:
            words = self._collect(server, clients, exchange)
        except ProtocolError as error:
            self.round += 1
            return RoundOutcome((), str(error))
        survivors = tuple(sorted(clients[number] for number in server.survivors))
        self._apply(words, survivors)
        self.round += 1
        return RoundOutcome(survivors, words=words)

    def _collect(self, server: SumServer, clients: Mapping[int, int], exchange: Exchange) -> np.ndarray:
        broadcast = self.agreement.setup.algorithm.broadcast(self.server)
        vectors = pack_vectors([np.asarray(leaf) for leaf in jax.tree.leaves((broadcast, self.state))])
        takes = (server.take_keys, server.take_pieces, server.take_masked, server.take_agreement, server.take_reveal)
        makes = (server.invitation, server.all_keys, None, server.survivors_list, server.agreements)
        there = sorted(clients)
        for name, make, take in zip(STEPS, makes, takes, strict=True):
            common = make() if make else b""
            steps = {
                clients[n]: Step(name, self.job.digest, self.round, common if make else server.pieces_for(n)) for n in there
            }
            if name == "masked":
                steps = {client: step._replace(vectors=vectors) for client, step in steps.items()}
            answers = exchange(steps)
            there = [n for n in there if self._taken(take, n, answers.get(clients[n]))]
        return server.open()

    def _taken(self, take: Callable[[int, bytes], None], number: int, answer: bytes | None) -> bool:
        """Tell whether a member still takes part: one without an answer, or with a wrong one, has dropped out."""
        if answer is None:
            return False
        try:
            take(number, answer)
        except ProtocolError:
            return False
        return True

    def _apply(self, words: np.ndarray, survivors: tuple[int, ...]) -> None:
        a, t = self.agreement, self.round
        broadcast = a.setup.algorithm.broadcast(self.server)
        total = jnp.asarray(words.reshape(broadcast.x0.shape))
        of = jnp.float32(len(survivors)), jnp.float32(len(survivors))  # all have as many slots, so every weight is 1
        result = open_cohort(a.setup, total, of, public_work(a, t), self.state, broadcast, t)
        messages = jax.tree.map(lambda leaf: leaf[None], result.message)
        reports = Reports(
            messages, jnp.zeros(1, jnp.int32), jnp.ones(1, bool), None, travel_at(a.setup, t, a.setup.local.steps)
        )
        self.server, self.state = server_round(a.setup, self.server, broadcast, reports), result.state
