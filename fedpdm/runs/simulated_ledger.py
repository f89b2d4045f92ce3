"""A simulated run's ledger: every participation is recorded before it is computed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.algorithms.local import step_size_at
from fedpdm.engines.simulation.simulation import Roster, Simulation
from fedpdm.privacy.ledger import Ledger, SpendRequest
from fedpdm.privacy.noise import SEEDED
from fedpdm.privacy.plan import Plan

__all__ = ["SimulatedLedger", "open_simulated_ledger", "client_name"]


def client_name(client: int) -> str:
    """How a simulated client is called in the ledger."""
    return f"client-{client}"


class SimulatedLedger:
    """Gives or refuses participations from each client's budget, and adds up what was spent."""

    def __init__(self, ledger: Ledger, plan: Plan, simulation: Simulation, job: str):
        self._ledger, self._plan, self._simulation, self._job = ledger, plan, simulation, job
        clients = [client_name(i) for i in range(simulation.federation.clients)]
        ledger.open_budgets(clients, plan.epsilon, plan.delta, plan.relation)
        # A resumed run repeats rounds with the same keys: the same bits again are not another release.
        self._recorded = {(row.client, row.round) for row in ledger.rows() if row.job == job}
        self.refused = 0

    def grant(self, start: int, roster: Roster) -> Roster:
        """Record the participations of these rounds; clients whose budget is used up are left out."""
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
        examples = float(self._simulation.federation.slots[client])
        step_size = float(step_size_at(self._simulation.setup.local, t))
        sensitivity = self._plan.sensitivity(step_size, examples)
        return SpendRequest(name, t, sensitivity, self._plan.cost_multiplier() * sensitivity)

    def summary(self) -> dict[str, Any]:
        """The guarantee, from what the ledger holds for the client that spent most."""
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


class NoLedger:
    """Stands in where no mechanism spends anything."""

    def summary(self) -> dict[str, Any]:
        return {}


@contextmanager
def open_simulated_ledger(path: Path, simulation: Simulation, job: str) -> Iterator[SimulatedLedger | NoLedger]:
    """The books of a run under the sound mechanism, set up to be asked before every release."""
    if simulation.plan is None:
        yield NoLedger()
        return
    with Ledger(path) as ledger:
        books = SimulatedLedger(ledger, simulation.plan, simulation, job)
        simulation.before_release = books.grant
        yield books
