"""The means and deviations of a deployment: asked for once, before the first round, and sent along with every request."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.compression.wire import WireError, decode, encode, make_part
from fedpdm.data.standard import Standard
from fedpdm.engines.flower.client.standard import LARGEST_MOMENT
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Request
from fedpdm.engines.flower.server.replies import NodeAnswer, valid_replies
from fedpdm.errors import UserError
from fedpdm.privacy.standard_release import Moments, combine_moments, moment_count, standard_from
from fedpdm.runs.folder import atomic_write

__all__ = ["Standards"]


class Standards:
    """The noised means of a job, in the file standard.json of its run folder."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.path = job, folder / "standard.json"
        self._kept: dict[str, Any] | None = json.loads(self.path.read_text()) if self.path.is_file() else None

    @property
    def due(self) -> bool:
        """Whether clients are to be asked for their means."""
        return self.job.settings.data.standardise and self._kept is None

    @property
    def standard(self) -> Standard | None:
        """The map that follows from the means, if the job has one."""
        if self._kept is None:
            return None
        return standard_from(Moments(np.array(self._kept["means"]), self._kept["noise"]), self.job.features)

    @property
    def message(self) -> bytes:
        """What requests carry: the means and their noise, as clients read them."""
        if self._kept is None:
            return b""
        values = np.array([*self._kept["means"], self._kept["noise"]], np.float32)
        return encode([make_part(values, np.ones(values.size, bool))])

    def multipliers(self) -> list[float]:
        """The noise multiplier of what every client was asked for, as its ledger counts it."""
        plan = self.job.setup[1]
        return [plan.standard_cost_multiplier()] if plan and self._kept else []

    def requests(self, clients: Iterable[int]) -> dict[int, Request]:
        """What these clients are asked; the same again after a crash, so that they answer with the same bytes."""
        return {client: Request("standardise", self.job.digest, 0, client, "") for client in sorted(clients)}

    def take(self, asked: dict[int, Request], replies: Iterable[NodeAnswer]) -> tuple[int, list[str]]:
        """Keep the mean by slots of what came in; returns how many clients it is of, and a line for every other reply."""
        messages, dropped = valid_replies(asked, replies)
        count, plan, found = moment_count(self.job.features), self.job.setup[1], {}
        assert plan is not None
        for client, reply in messages.items():
            try:
                (part,) = decode(reply.vectors, dimensions=[count], limit=LARGEST_MOMENT)
                if len(part.values) != count:
                    raise WireError("count", f"Expected {count} means, got {len(part.values)}.")
                found[client] = part.values.astype(np.float64)
            except WireError as error:
                dropped.append(f"client {client}: {error.reason}: {error}")
        if not found:
            raise UserError(f"No client sent means and deviations: {'; '.join(dropped[:3]) or 'no reply'}.")
        slots = np.array([self.job.slots_of(client) for client in found], float)
        moments = combine_moments(list(found.values()), slots, self.job.features, plan.standard_multiplier)
        # rounded to what travels, so that server and clients have the same map
        means = moments.means.astype(np.float32).tolist()
        self._kept = {"clients": sorted(found), "means": means, "noise": float(np.float32(moments.noise))}
        atomic_write(self.path, (json.dumps(self._kept, indent=2) + "\n").encode())
        return len(found), dropped
