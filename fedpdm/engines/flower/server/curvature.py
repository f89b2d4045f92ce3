"""Intervals of a deployed model: clients are asked once, after the last round, for noised gradients and curvatures."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.compression.wire import WireError, decode
from fedpdm.data.standard import Standard
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Refused, Request
from fedpdm.engines.flower.server.replies import NodeAnswer, valid_replies
from fedpdm.hostile.vectors import why_impossible
from fedpdm.privacy.curvature_release import combine_curvature, curvature_size
from fedpdm.privacy.first_release import Map
from fedpdm.privacy.interval_release import LEAST_CLIENTS, bounds_of
from fedpdm.privacy.noise import mean_noise
from fedpdm.runs.folder import atomic_write
from fedpdm.runs.integrity import read_sealed, sealed
from fedpdm.runs.intervals import Found, Public, noised_intervals

__all__ = ["Curvatures"]

LARGEST = 1e9  # of a noised gradient or curvature


class Curvatures:
    """The released gradients and curvatures of a job, in the file curvature.json of its run folder."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.path = job, folder / "curvature.json"
        self._kept: dict[str, list[float]] | None = None
        if self.path.is_file():
            self._kept = read_sealed(self.path, "put the backup of it back; without it the model has no intervals")

    def due(self, done: int) -> bool:
        """Tell whether clients are to be asked, after this number of rounds."""
        plan = self.job.setup[1]
        wanted = plan is not None and plan.interval_multiplier > 0
        return wanted and done == self.job.config.rounds.total and self._kept is None

    def multipliers(self) -> list[float]:
        """The noise multiplier of what every client was asked for, as its ledger counts it."""
        plan = self.job.setup[1]
        return [plan.interval_cost_multiplier()] if plan and self._kept is not None else []

    def take(self, asked: dict[int, Request], replies: Iterable[NodeAnswer]) -> tuple[int, list[str]]:
        """Keep what came in; returns how many clients it is of, and a line for every other reply."""
        messages, dropped = valid_replies(asked, replies)
        size, found = curvature_size(self.job.width), {}
        for client, reply in messages.items():
            try:
                (part,) = decode(reply.vectors, dimensions=[size], limit=LARGEST)
                if len(part.values) != size:
                    raise WireError("count", f"Expected {size} numbers, got {len(part.values)}.")
                if why := self._impossible(client, part.values):
                    raise Refused(*why.split(": ", 1))
                found[str(client)] = part.values.astype(np.float64).tolist()
            except WireError as error:
                dropped.append(f"client {client}: {error.reason}: {error}")
            except Refused as refused:
                dropped.append(f"client {client}: {refused}")
        self._kept = found
        atomic_write(self.path, sealed(found))
        return len(found), dropped

    def _impossible(self, client: int, values: np.ndarray) -> str:
        """Why no honest client sends this vector; its rows' shares add up to the bound of one row at most."""
        job, (setup, plan) = self.job, self.job.setup
        assert plan is not None, "checked before"
        bounds = bounds_of(setup.problem.loss, job.config.data.radius or 1.0)
        slots, places = job.slots_of(client), job.places_of(client)
        noise = mean_noise(bounds.sensitivity, slots, places, values.size, plan.interval_multiplier)
        return why_impossible(values, bounds.sensitivity, noise.sigma)

    def intervals(self, model: np.ndarray, shares: np.ndarray | None, standard: Map | None) -> Found | None:
        """The intervals of the model that clients were asked about; None if the job has none."""
        plan, kept = self.job.setup[1], self._kept
        if plan is None or kept is None:
            return None
        clients = sorted(map(int, kept))
        if len(clients) < LEAST_CLIENTS:
            return Found(
                {}, {"reason": f"Only {len(clients)} clients sent what intervals need: {LEAST_CLIENTS} are the least."}
            )
        loss, data = self.job.setup[0].problem.loss, self.job.config.data
        slots: Any = np.array([self.job.slots_of(client) for client in clients], float)
        each = np.ones(len(clients)) if shares is None else np.asarray(shares)[clients]
        vectors = [np.array(kept[str(client)]) for client in clients]
        bounds = bounds_of(loss, data.radius or 1.0)
        sums = combine_curvature(vectors, slots, each, bounds, plan.interval_multiplier)
        scaled = standard if isinstance(standard, Standard) else None  # a job with intervals has no other map
        public = Public(bounds, f"{len(clients)} clients", float(np.median(slots)), loss.target, self.job.unit)
        return noised_intervals(model, sums, public, scaled)
