"""The server's check of every message of a deployment: could an honest client have sent it?"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.algorithms.base import Broadcast, Reports
from fedpdm.data.prepare import radius_of
from fedpdm.engines.flower.exact import noise_sigma
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Refused
from fedpdm.errors import ConfigError
from fedpdm.hostile.check import Verdict, check_message, next_state, reason
from fedpdm.hostile.comparing import compare_results, standing
from fedpdm.problem.objective import concave_gradient
from fedpdm.rounds import ClientResult
from fedpdm.setup.band import MEMBERS, band_of, no_band_because

__all__ = ["Judge"]

CONTRADICTED = "compared: the other sums of the round contradict it"


class Judge:
    """Holds messages against what honest clients of a job can send.

    Parameters
    ----------
    job : Job
        The job.

    Attributes
    ----------
    unchecked : str or None
        Why messages, or those of single members of a sum, are not checked; None: they are.
    """

    def __init__(self, job: Job) -> None:
        self.job, radius = job, radius_of(job.config)
        self.setup, plan = job.setup
        self.band = band_of(self.setup, plan, radius)
        sums = MEMBERS if job.config.privacy.trust == "cohorts" else None
        self.unchecked = no_band_because(self.setup, plan, radius) or sums
        if job.config.cohorts.compare and self.band is None:
            raise ConfigError(f"cohorts.compare=true needs the limits of an honest sum, and there are none: {self.unchecked}.")
        self._check = jax.jit(jax.vmap(self._one, in_axes=(None, 0, 0, 0, 0, None, None)))
        self._next = jax.jit(jax.vmap(partial(next_state, self.setup), in_axes=(None, 0, 0, 0)))

    def first(self, x0: Array) -> Any:
        """The states of clients that have said nothing; without rows where messages are not checked."""
        rows = self.job.config.data.clients if self.band else 0
        return jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape)), self.setup.algorithm.init_client(x0))

    def _one(self, broadcast: Broadcast, state: Any, message: Any, sent: Any, sigma: Array, t: Array, support: Any) -> Verdict:
        assert self.band is not None
        return check_message(self.setup, self.band, t, broadcast, state, message, self._masks(sent), sigma, support)

    def _masks(self, sent: Any) -> Any:
        """None where a client sends all coordinates, as `check_message` wants it."""
        return None if self.setup.links.uplink == 1 else sent

    def look(
        self, broadcast: Broadcast, told: Any, reports: Reports, t: int, support: Array | None
    ) -> tuple[Array, dict[int, str]]:
        """Which messages an honest client could have sent, and why not, by client.

        Parameters
        ----------
        broadcast, reports, t, support
            Of the round.
        told : tree
            The clients' states, as their messages tell them.
        """
        count = len(reports.clients)
        if self.band is None or not count:
            return reports.present, {}
        clients, states = np.asarray(reports.clients), jax.tree.map(lambda leaf: leaf[reports.clients], told)
        sigmas, impossible = self._sigmas(broadcast, states, clients, t)
        # as many rows in every round, so that the check is compiled once
        rows = np.resize(np.arange(count), max(count, self.job.config.rounds.participants))
        inputs = jax.tree.map(lambda leaf: leaf[rows], (states, reports.messages, reports.sent, jnp.asarray(sigmas)))
        verdicts = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], self._check(broadcast, *inputs, jnp.int32(t), support))
        accepted = np.asarray(verdicts.accepted) & np.array([client not in impossible for client in clients])
        wrong = np.flatnonzero(np.asarray(reports.present) & ~accepted)
        reasons = {int(clients[place]): reason(Verdict(*(value[place] for value in verdicts))) for place in wrong}
        return reports.present & accepted, reasons | {client: why for client, why in impossible.items() if client in reasons}

    def _sigmas(self, broadcast: Broadcast, states: Any, clients: np.ndarray, t: int) -> tuple[np.ndarray, dict[int, str]]:
        """The noise of every client's solution; and the clients that could not have made it exact, and so send nothing."""
        x0, algorithm = np.asarray(broadcast.x0), self.setup.algorithm
        each = [jax.tree.map(lambda leaf, place=place: leaf[place], states) for place in range(len(clients))]
        linear = [np.asarray(algorithm.linear_term(state, broadcast)) for state in each]
        curved = self.setup.problem.beta * np.asarray(concave_gradient(broadcast.x0))
        sigmas, impossible = np.zeros(len(clients), np.float32), {}
        for place, client in enumerate(clients):
            slope = float(np.linalg.norm(linear[place] + curved))
            try:
                sigmas[place] = noise_sigma(self.job, int(client), t, x0, linear[place], slope)
            except Refused as refused:
                impossible[int(client)] = str(refused)
        return sigmas, impossible

    def look_at_sums(
        self, broadcast: Broadcast, states: Any, results: ClientResult, t: int, evidence: list[np.ndarray] | None
    ) -> tuple[list[str], np.ndarray]:
        """[cohorts] why no honest members have this sum, "" if they could; and whether it is against the others.

        Parameters
        ----------
        broadcast, t
            Of the round.
        states : tree
            The cohorts' states before it, stacked.
        results : ClientResult
            What the sums make of the cohorts, stacked.
        evidence : list of ndarray or None
            Of every cohort: logarithms of the evidence against its members; None: members are not traced.
        """
        count = len(results.noise)
        if self.band is None:
            return [""] * count, np.zeros(count, bool)
        gain = self.setup.algorithm.model_vector(self.setup.algorithm.gain(jnp.float32(1.0)))
        check = partial(check_message, self.setup, self.band, t, broadcast)
        found = jax.vmap(lambda state, message, noise: check(state, message, None, noise / gain))(
            states, results.message, results.noise
        )
        accepted = np.asarray(found.accepted)
        reasons = ["" if fine else reason(Verdict(*(np.asarray(v)[i] for v in found))) for i, fine in enumerate(accepted)]
        if not self.job.config.cohorts.compare:
            return reasons, ~accepted
        votes = None if evidence is None else jnp.stack([_standing(own) for own in evidence])
        usable = jnp.asarray(accepted)
        compared = compare_results(self.setup, self.band, t, broadcast, states, results, None, usable, votes)
        contradicted = np.asarray(compared.contradicted)
        words = [why or (CONTRADICTED if bad else "") for why, bad in zip(reasons, contradicted, strict=True)]
        return words, ~accepted | np.asarray(compared.against)

    def after(self, broadcast: Broadcast, told: Any, reports: Reports) -> Any:
        """The clients' states after a round with these reports."""
        if self.band is None or not len(reports.clients) or not jax.tree.leaves(told):
            return told
        states = jax.tree.map(lambda leaf: leaf[reports.clients], told)
        news = self._next(broadcast, states, reports.messages, self._masks(reports.sent))

        def put(table: Array, rows: Array, old: Array) -> Array:
            present = reports.present.reshape(-1, *[1] * (rows.ndim - 1))
            return table.at[reports.clients].set(jnp.where(present, rows, old))

        return jax.tree.map(put, told, news, states)


def _standing(evidence: np.ndarray) -> Array:
    """The vote of a sum of these members."""
    return standing(jnp.asarray(evidence)[None], jnp.ones((1, len(evidence)), bool))[0]
