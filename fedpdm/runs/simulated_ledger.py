"""A simulated run's ledger: every participation is recorded before it is computed."""

import functools
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedpdm.algorithms.local import step_size_at
from fedpdm.data.federation import Federation
from fedpdm.engines.simulation.simulation import Roster
from fedpdm.privacy.basis_release import basis_release
from fedpdm.privacy.interval_release import bounds_of
from fedpdm.privacy.ledger import Ledger, SpendRequest
from fedpdm.privacy.noise import SEEDED
from fedpdm.privacy.plan import Plan
from fedpdm.privacy.standard_release import means_release
from fedpdm.rounds import Setup

__all__ = ["SimulatedLedger", "client_name"]

# added to the name of a job: the releases before its first round and after its last one
MOMENTS, INTERVALS = " moments", " intervals"


def client_name(client: int) -> str:
    """Return the name of a simulated client in the ledger.

    Parameters
    ----------
    client : int
        Its number.

    Returns
    -------
    str
        The name.
    """
    return f"client-{client}"


class SimulatedLedger:
    """Grants or refuses participations from each client's budget, and adds up the spending.

    It is made before the simulation, which asks it before every release, and opened (`with`) before training.

    Parameters
    ----------
    path : Path
        The ledger's file; it is made when the ledger is opened.
    job : str
        The name under which the releases of this run are recorded.
    plan, setup, federation
        The mechanism, the local work and the clients of the simulation.
    """

    def __init__(self, path: Path, job: str, plan: Plan, setup: Setup, federation: Federation) -> None:
        self._path, self._job, self._plan, self._federation, self._loss = path, job, plan, federation, setup.problem.loss
        self._sensitivity = functools.cache(plan.sensitivity)  # clients of one size have the same in every round
        self._step_size = functools.cache(lambda t: float(step_size_at(setup.local, t)))
        self._recorded: set[tuple[str, int]] = set()
        self._ledger: Ledger | None = None
        self._open = ExitStack()
        self.refused = 0

    def __enter__(self) -> Self:
        self._ledger = ledger = self._open.enter_context(Ledger(self._path))
        plan, clients = self._plan, [client_name(i) for i in range(self._federation.clients)]
        ledger.open_budgets(clients, plan.epsilon, plan.delta, plan.relation)
        # A resumed run repeats rounds with the same keys: the same bits again are not another release.
        self._recorded = {(row.client, row.round) for row in ledger.rows() if row.job == self._job}
        if plan.standard_multiplier:
            known = self._federation
            release = (
                basis_release(len(known.original_names), 1.0, 1) if known.original_names else means_release(known.feature_names)
            )
            self._record_once(ledger, MOMENTS, release.what, plan.standard_multiplier, release.bound)
        if plan.interval_multiplier:
            bound = bounds_of(self._loss, 1.0).sensitivity
            self._record_once(ledger, INTERVALS, "gradients and curvature", plan.interval_multiplier, bound)
        return self

    def _record_once(self, ledger: Ledger, name: str, what: str, noise_multiplier: float, bound: float) -> None:
        """Record a release outside the rounds as a separate job of one round, before anything is computed."""
        job, federation, plan = f"{self._job}{name}", self._federation, self._plan
        known = {row.client for row in ledger.rows() if row.job == job}
        z = noise_multiplier / plan.clients_per_unit**0.5
        each = [(client_name(i), bound / float(size)) for i, size in enumerate(federation.slots)]
        new = [SpendRequest(name, 0, s, z * s) for name, s in each if name not in known]
        ledger.spend_many(new, what, job)

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._ledger = None

    def grant(self, start: int, roster: Roster) -> Roster:
        """Record the participations of these rounds; leave out clients whose budget is used up."""
        assert self._ledger, "a release without an open ledger"
        wanted = [
            (t, place, client_name(client))
            for t, (chosen, present) in enumerate(roster, start)
            for place, client in enumerate(chosen)
            if present[place]
        ]
        new = [(t, place, client) for t, place, client in wanted if (client, t) not in self._recorded]
        requests = [self._request(t, roster[t - start][0][place], client) for t, place, client in new]
        granted = self._ledger.spend_many(requests, self._plan.mode, self._job)
        answer = [(chosen, present.copy()) for chosen, present in roster]
        for (t, place, client), yes in zip(new, granted, strict=True):
            answer[t - start][1][place] = yes
            self.refused += not yes
            if yes:
                self._recorded.add((client, t))
        return answer

    def _request(self, t: int, client: np.integer, name: str) -> SpendRequest:
        examples = float(self._federation.slots[client])
        sensitivity = self._sensitivity(self._step_size(t), examples)
        return SpendRequest(name, t, sensitivity, self._plan.cost_multiplier() * sensitivity)

    def summary(self) -> dict[str, Any]:
        """Return the guarantee, from the ledger's entries for the client that spent most."""
        assert self._ledger, "a summary without an open ledger"
        spent = {client: self._ledger.spent(client)[0] for client in sorted({c for c, _ in self._recorded})}
        epsilon = max(spent.values(), default=0.0)
        plan = self._plan
        return {
            "epsilon": epsilon + plan.before[0],
            "delta": plan.delta + plan.before[1],
            **plan.terms(),
            "refused_participations": self.refused,
            "guarantee": f"{plan.sentence(epsilon)} {SEEDED}",
        } | ({"schema_epsilon": plan.before[0]} if plan.before[0] else {})
