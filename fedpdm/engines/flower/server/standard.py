"""What clients release about their features: asked for once, before the first round, and sent along with every request."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.compression.wire import WireError, decode, encode, make_part
from fedpdm.engines.flower.client.standard import LARGEST_MOMENT
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Refused, Request
from fedpdm.engines.flower.server.replies import NodeAnswer, valid_replies
from fedpdm.errors import UserError
from fedpdm.hostile.vectors import why_impossible
from fedpdm.privacy.first_release import Map, Moments, combined
from fedpdm.privacy.noise import mean_noise
from fedpdm.runs.folder import atomic_write
from fedpdm.runs.integrity import read_sealed, sealed

__all__ = ["Standards"]

BACKUP = "put the backup of it back, or begin a new job"


class Standards:
    """The release before training of a job, in the file standard.json of its run folder."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.path = job, folder / "standard.json"
        self._kept: dict[str, Any] | None = read_sealed(self.path, BACKUP) if self.path.is_file() else None

    @property
    def due(self) -> bool:
        """Whether clients are to be asked for their means."""
        return self.job.first_release is not None and self._kept is None

    @cached_property
    def standard(self) -> Map | None:
        """The map that follows from what was released, if the job has one."""
        found, release = self._moments, self.job.first_release
        return release.map_of(found) if found is not None and release is not None else None

    @cached_property
    def message(self) -> bytes:
        """What requests carry: the numbers from which clients compute the map."""
        found, release = self._moments, self.job.first_release
        if found is None or release is None:
            return b""
        values = release.sent(found).astype(np.float32)
        return encode([make_part(values, np.ones(values.size, bool))])

    @property
    def _moments(self) -> Moments | None:
        return None if self._kept is None else Moments(np.array(self._kept["means"]), self._kept["noise"])

    def multipliers(self) -> list[float]:
        """The noise multiplier of what every client was asked for, as its ledger counts it."""
        plan = self.job.setup[1]
        return [plan.standard_cost_multiplier()] if plan and self._kept else []

    def requests(self, clients: Iterable[int]) -> dict[int, Request]:
        """What these clients are asked; the same again after a crash, so that they answer with the same bytes."""
        return {client: Request("standardise", self.job.digest, 0, client, "") for client in sorted(clients)}

    def take(self, asked: dict[int, Request], replies: Iterable[NodeAnswer]) -> tuple[int, list[str]]:
        """Keep the mean of what came in; returns how many clients it is of, and a line for every other reply."""
        messages, dropped = valid_replies(asked, replies)
        plan, release, found = self.job.setup[1], self.job.first_release, {}
        assert plan is not None
        assert release is not None
        count = release.size
        for client, reply in messages.items():
            try:
                (part,) = decode(reply.vectors, dimensions=[count], limit=LARGEST_MOMENT)
                if len(part.values) != count:
                    raise WireError("count", f"Expected {count} numbers, got {len(part.values)}.")
                slots, places = self.job.slots_of(client), self.job.places_of(client)
                noise = mean_noise(release.bound, slots, places, count, plan.standard_multiplier)
                if why := why_impossible(part.values, release.bound, noise.sigma):
                    raise Refused(*why.split(": ", 1))
                found[client] = part.values.astype(np.float64)
            except WireError as error:
                dropped.append(f"client {client}: {error.reason}: {error}")
            except Refused as refused:
                dropped.append(f"client {client}: {refused}")
        if not found:
            raise UserError(f"No client sent its {release.what}: {'; '.join(dropped[:3]) or 'no reply'}.")
        slots = np.array([self.job.slots_of(client) for client in found], float)
        self.keep(found, combined(release, list(found.values()), slots, plan.standard_multiplier * release.bound / slots))
        return len(found), dropped

    def keep(self, clients: Iterable[int], moments: Moments) -> None:
        """Keep the mean of what these clients released."""
        # rounded to what travels, so that server and clients have the same map
        means = moments.means.astype(np.float32).tolist()
        self._kept = {"clients": sorted(clients), "means": means, "noise": float(np.float32(moments.noise))}
        atomic_write(self.path, sealed(self._kept))
        for name in ("standard", "message"):  # computed before there was anything
            self.__dict__.pop(name, None)
