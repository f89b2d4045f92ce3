"""The server's rounds by secure sums: five steps each, a run folder, and a checkpoint before and after every round.

It knows nothing of Flower: an `exchange` sends requests and brings answers. The sums of a round's cohorts run side by side, in
the same five exchanges.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.algorithms.base import Reports
from fedpdm.engines.flower.cohort.agreement import agree_on, public_work
from fedpdm.engines.flower.cohort.node import pack_vectors
from fedpdm.engines.flower.cohort.one_sum import OneSum
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import STEPS, Reply, Request
from fedpdm.engines.flower.server.coordinator import Coordinator
from fedpdm.engines.flower.server.replies import NodeAnswer, valid_replies
from fedpdm.engines.flower.server.state import CoordinatorState, RoundTraffic
from fedpdm.engines.simulation.measures import TestSet
from fedpdm.engines.simulation.state import initial_model
from fedpdm.errors import UserError
from fedpdm.hostile.check import STRIKES
from fedpdm.hostile.comparing import left_out, more_evidence
from fedpdm.hostile.vectors import why_impossible
from fedpdm.participation import Roster, cohort_roster, cohort_table
from fedpdm.privacy.first_release import Moments
from fedpdm.privacy.rotation import rotate_back
from fedpdm.privacy.sharing import from_words
from fedpdm.rounds import ClientResult, open_cohort, server_round, travel_at
from fedpdm.runs.folder import RunFolder, atomic_write
from fedpdm.runs.integrity import read_sealed, sealed
from fedpdm.secure_sums.messages import pack

__all__ = ["CohortCoordinator", "Exchange"]

# from requests by client to the answers; a client that does not answer, or refuses, has dropped out
Exchange = Callable[[dict[int, Request]], Iterable[NodeAnswer]]
ROSTER = "roster.json"


def _not_used(why: str) -> str:
    return (
        f"The sum of the members' second moments is not used: {why} What was asked for is on the members' ledgers, and there "
        "is one such sum per job: begin a new job, or set data.basis to another value."
    )


class CohortCoordinator(Coordinator):
    """The rounds of one job of secure sums, from the folder's checkpoint if there is one.

    Sums that were under way when the server's process ended stay closed: members take part in one sum per round. Their round
    counts as one without participants.

    Parameters
    ----------
    job, folder, test
        As in `Coordinator`; the job has privacy.trust=cohorts.
    """

    def __init__(self, job: Job, folder: RunFolder, test: TestSet | None) -> None:
        self.agreement = agree_on(job)
        self.sums: dict[int, np.ndarray] = {}  # the words of the last round's sums that were opened, by cohort
        self._refused_sums: dict[int, int] = {}  # of a fixed cohort, in a row
        self._empty = 0  # rounds without a sum that was used, in a row
        table, real = cohort_table(job.config.data.clients, self.agreement.sums.cohort.members, job.config.seed)
        self.cohorts = [sorted(row[own].tolist()) for row, own in zip(table, real, strict=True)]
        super().__init__(job, folder, test)
        path = folder.path / ROSTER
        known = read_sealed(path, "put the backup of it back, or begin a new job") if path.exists() else {}
        self.keys: dict[int, str] = {int(client): key for client, key in known.items()}
        if int(self.state.begun) > self.round:
            self._end([], {}, RoundTraffic.none())

    @property
    def fixed(self) -> bool:
        """Whether cohorts keep their members."""
        return self.config.cohorts.members == "fixed"

    @property
    def least(self) -> int:
        """The clients that must be connected, so that no cohort misses more members than may be missing."""
        return self.config.data.clients - len(self.cohorts) * self.agreement.sums.cohort.dropouts

    def _choose(self) -> Roster:
        size = self.agreement.sums.cohort.members
        return cohort_roster(self.config.rounds.sampling, size=size, fixed=self.fixed, **self._how())

    def _first_state(self, shape: tuple[int, int]) -> CoordinatorState:
        algorithm, scale, count = self.setup.algorithm, self.config.rounds.initial_scale, len(self.cohorts)
        x0 = initial_model(self.config.seed, shape, scale)
        first = super()._first_state(shape)
        states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), algorithm.init_client(x0))
        evidence = jnp.zeros(self.config.data.clients) if self.config.cohorts.compare and not self.fixed else ()
        own = {"server": algorithm.init_server(x0, count), "cohort": states, "told": (), "evidence": evidence}
        return first._replace(**own, begun=jnp.int32(0))

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

    def left_out(self) -> list[int]:
        """Members of fixed cohorts whose sums were refused again and again, and traced members of new ones."""
        struck = [row for row, times in self._refused_sums.items() if times >= STRIKES]
        traced = () if isinstance(self.state.evidence, tuple) else np.flatnonzero(np.asarray(left_out(self.state.evidence)))
        return sorted({client for row in struck for client in self.cohorts[row]} | {int(client) for client in traced})

    def begin_sums(self, there: Iterable[int]) -> list[OneSum]:
        """The sums of the next round. New cohorts are made of clients that are connected; fixed ones are as they are."""
        clients, present = self._roster[self.round]
        out, size, there = set(self.left_out()), self.agreement.sums.cohort.members, set(there)
        order = [int(client) for client in clients[present] if client not in out]
        if self.fixed:
            chosen = set(order)
            groups = {row: members for row, members in enumerate(self.cohorts) if chosen & set(members)}
        else:
            order = [client for client in order if client in there]
            parts = np.array_split(np.array(order, int), len(order) // size) if len(order) >= size else []
            groups = {row: part.tolist() for row, part in enumerate(parts)}
        return [self._one_sum(self.round, row, members, there) for row, members in groups.items()]

    def _one_sum(self, number: int, row: int, members: Iterable[int], there: Iterable[int]) -> OneSum:
        keys = {client: self.keys[client] for client in members}
        return OneSum(row, keys, self.agreement.terms(number, tuple(sorted(keys.values()))), there)

    def sum_moments(self, exchange: Exchange, clients: Iterable[int]) -> tuple[int, list[str]]:
        """The sums before training: keep the mean of these clients' second moments, from which the basis follows.

        Returns how many members are in it, and a line for every answer that is not used. A member takes part in one such sum
        per job.
        """
        number, first = self.config.rounds.total, self.agreement.first
        assert first is not None
        sums = [self._one_sum(number, row, members, clients) for row, members in enumerate(self.cohorts)]
        dropped, *_ = self._take_steps(sums, exchange, number)
        sigma, totals = self.agreement.sigma(number), {}
        for one in sums:
            if one.words is not None:
                total, count = from_words(one.words, first.lattice.bits) / first.lattice.scale, len(one.survivors)
                if why := why_impossible(rotate_back(total / count), first.release.bound, sigma / count**0.5):
                    one.refuse(why.split(": ", 1)[1])
                else:
                    totals[one.row] = total
        used = [client for one in sums if not one.closed for client in one.survivors]
        if not used:
            raise UserError(_not_used(_why_closed(sums, self.agreement.sums.cohort.members)))
        mean = rotate_back(sum(totals.values()) / len(used))
        self.standards.keep(used, Moments(mean, sigma / len(used) ** 0.5))
        return len(used), dropped + [f"{one.name}: {one.closed}" for one in sums if one.closed]

    def _take_steps(
        self, sums: list[OneSum], exchange: Exchange, number: int
    ) -> tuple[list[str], RoundTraffic, dict[int, Reply]]:
        """Take all steps of these sums side by side, and open them.

        Returns a line for every answer that is not used, the bytes, and the masked shares.
        """
        dropped: list[str] = []
        sizes, messages = RoundTraffic.none(), {}
        for step, name in enumerate(STEPS):
            if not (asked := {client: each for one in sums for client, each in self._requests(one, name, number).items()}):
                break
            heard, lines = valid_replies(asked, exchange(asked))
            dropped += [f"step {name}, {line}" for line in lines]
            sizes = sizes.more(asked, heard)
            if name == "masked":
                sizes, messages = sizes._replace(asked=list(asked)), heard
            dropped += [line for one in sums for line in one.take(step, heard)]
        for one in sums:
            one.open()
        return dropped, sizes, messages

    def one_round(self, exchange: Exchange, clients: Iterable[int]) -> tuple[dict[str, Any], list[str], str]:
        """One sum of every cohort of the round, and the model that follows from them.

        Returns the row of measurements, a line for every answer that is not used, and why sums stayed closed or are not used,
        if any: they change nothing.
        """
        sums = self.begin_sums(clients)
        self.state = self.state._replace(begun=jnp.int32(self.round + 1))
        self._checkpoint()
        dropped, sizes, messages = self._take_steps(sums, exchange, self.round)
        self.sums = {one.row: one.words for one in sums if one.words is not None}
        row = self._end(sums, messages, sizes)
        closed = _why_closed(sums, self.agreement.sums.cohort.members)
        self._require_sums(sums, closed, dropped)
        return row, dropped, closed

    def _require_sums(self, sums: list[OneSum], closed: str, dropped: list[str]) -> None:
        """Stop where round after round ends without a sum: further ones cost releases, and teach the model nothing."""
        for one in sums:
            self._refused_sums[one.row] = self._refused_sums.get(one.row, 0) + 1 if one.refused and self.fixed else 0
        self._empty = 0 if any(not one.closed for one in sums) else self._empty + 1
        if self._empty < STRIKES:
            return
        if any(one.refused for one in sums):
            raise UserError(
                f"{self._empty} sums in a row were refused. The last one: {closed} A member is hostile or broken, and "
                "further sums would spend all budgets for nothing. Find it, and begin a new job without it, or run again."
            )
        old = sum("step advertise, " in line and " sum: " in line for line in dropped)
        why = (
            f" {old} clients have begun these sums before: this checkpoint is an old copy, put the newest back." if old else ""
        )
        first = f" The first refusal: {dropped[0].rstrip('.')}." if dropped and not old else ""
        raise UserError(
            f"{self._empty} rounds in a row ended without a sum. The last one: {closed}{why}{first} Run again when this is "
            "mended: it goes on with the next round."
        )

    def _requests(self, one: OneSum, name: str, number: int) -> dict[int, Request]:
        """A step of a cohort's sum with this number, for all of its members who are still there."""
        vectors, trains = b"", name == "masked" and number < self.config.rounds.total
        if trains:
            broadcast = self.setup.algorithm.broadcast(self.state.server)
            vectors = pack_vectors([np.asarray(leaf) for leaf in jax.tree.leaves((broadcast, self._state_of(one.row)))])
        asked = {}
        for client, message in one.ask(name).items():
            accepted, standard = (self._last_used(client), self.standards.message) if trains else ("", b"")
            content = pack("step", [message, vectors])
            asked[client] = Request(name, self.job.digest, number, client, accepted, content, standard)
        return asked

    def _state_of(self, row: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[row], self.state.cohort)

    def _end(self, sums: list[OneSum], messages: Mapping[int, Reply], sizes: RoundTraffic) -> dict[str, Any]:
        """The state after this round, its row and its checkpoint."""
        server = self._opened(sums)
        self._require_finite(server)
        used = {c: messages[c] for one in sums if not one.closed for c in one.survivors}
        wrong = [client for one in sums if one.refused for client in one.survivors]
        self.state = self.state._replace(refused=self.state.refused.at[np.array(wrong, np.int32)].add(1))
        invited = int(self._roster[self.round][1].sum())
        self._move_on(server, self.state.downlink, used, sizes)
        row = self._row(len(used), invited - len(used))
        return self._write(row | {"refused": sum(one.refused for one in sums)})

    def virtual_client(self, row: int, words: np.ndarray, count: int) -> ClientResult:
        """What the sum of so many members makes of a cohort."""
        a, t = self.agreement, self.round
        of = jnp.float32(count), jnp.float32(count)  # all have as many slots, so every weight is 1
        broadcast = a.setup.algorithm.broadcast(self.state.server)
        return open_cohort(a.setup, jnp.asarray(words), of, public_work(a, t), self._state_of(row), broadcast, t)

    def _opened(self, sums: list[OneSum]) -> Any:
        """The server's state after the sums that can be used; the state and the evidence of cohorts move on as well."""
        a, t, state = self.agreement, self.round, self.state
        opened = [one for one in sums if one.words is not None]
        if not opened:
            return state.server
        each = [self.virtual_client(one.row, one.words, len(one.survivors)) for one in opened]  # type: ignore[arg-type]
        results: ClientResult = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
        rows = jnp.array([one.row for one in opened], jnp.int32)
        before, broadcast = jax.tree.map(lambda leaf: leaf[rows], state.cohort), a.setup.algorithm.broadcast(state.server)
        reasons, against = self.judge.look_at_sums(broadcast, before, results, t, self._members(opened))
        for one, why in zip(opened, reasons, strict=True):
            if why:
                one.refuse(why)
        present = jnp.array([not one.closed for one in opened])
        self._trace(opened, against)
        self.state = self.state._replace(
            cohort=jax.tree.map(
                lambda table, new, old: table.at[rows].set(jnp.where(present.reshape(-1, *[1] * (new.ndim - 1)), new, old)),
                state.cohort,
                results.state,
                before,
            )
        )
        reports = Reports(results.message, rows, present, None, travel_at(a.setup, t, a.setup.local.steps))
        return server_round(a.setup, state.server, broadcast, reports) if bool(present.any()) else state.server

    def _members(self, opened: list[OneSum]) -> list[np.ndarray] | None:
        """[cohorts] the evidence against the members of every sum; None: members are not traced."""
        if isinstance(self.state.evidence, tuple):
            return None
        evidence = np.asarray(self.state.evidence)
        return [evidence[one.survivors] for one in opened]

    def _trace(self, opened: list[OneSum], against: np.ndarray) -> None:
        """Count a round for and against the members of its sums."""
        if isinstance(self.state.evidence, tuple):
            return
        clients = np.array([client for one in opened for client in one.survivors], np.int32)
        bad = np.repeat(against, [len(one.survivors) for one in opened])
        before = self.state.evidence[clients]
        after = more_evidence(before, jnp.ones(len(clients), bool), jnp.asarray(bad))
        self.state = self.state._replace(evidence=self.state.evidence.at[clients].set(after))


def _why_closed(sums: list[OneSum], size: int) -> str:
    """Why sums are not used, in one line; a cohort is named where there are several."""
    if not sums:
        return f"There are too few clients for a cohort of {size}: no sum was begun."
    if len(sums) == 1:
        return sums[0].closed
    return " ".join(f"{one.name}: {one.closed}" for one in sums if one.closed)
