"""The server's state of a run, and the sizes of a round's messages."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from fedpdm.compression.links import Downlink
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Reply, Request
from fedpdm.setup.shares import precisions

__all__ = ["CoordinatorState", "RoundTraffic", "shares_of"]


class CoordinatorState(NamedTuple):
    """All that must survive the server's process."""

    server: Any
    downlink: Downlink
    tail_sum: Array
    accepted: Array  # [clients, 16] uint8: the name of each client's last message that was used; zeros: none
    asked: Array  # [clients] how often each client was asked: an upper bound on its participations
    used: Array  # [clients] how many of its messages were used
    traffic: Array  # [links, 2]: mebibytes and bytes so far
    told: Any  # the clients' states, as their messages tell them; without rows where messages are not checked
    refused: Array  # [clients] messages that no honest client could have sent
    cohort: Any = ()  # of secure sums: the cohorts' states, stacked
    begun: Any = ()  # of secure sums: rounds whose sums were begun
    evidence: Any = ()  # [clients] of new cohorts whose sums are compared: logarithms of the evidence against members


class RoundTraffic(NamedTuple):
    """What travelled in a round, in bytes by client, and who was asked for something that counts as a participation."""

    up: dict[int, int]
    down: dict[int, int]
    asked: list[int]
    indices: Mapping[int, int]  # of the uplink's indices alone

    @classmethod
    def none(cls) -> "RoundTraffic":
        """Nothing yet."""
        return cls({}, {}, [], {})

    def more(self, asked: Mapping[int, Request], used: Mapping[int, Reply]) -> "RoundTraffic":
        """With these requests, and these of the replies."""
        down = self.down | {client: self.down.get(client, 0) + len(request.vectors) for client, request in asked.items()}
        up = self.up | {client: self.up.get(client, 0) + len(reply.vectors) for client, reply in used.items()}
        return self._replace(up=up, down=down)


def shares_of(job: Job) -> np.ndarray | None:
    """Every client's share of the objective, by the precision of what its public slots let it say; None: 1/N each.

    Parameters
    ----------
    job : Job
        The job.

    Returns
    -------
    ndarray or None
        [clients].
    """
    plan, slots = job.setup[1], np.array(job.all_slots, float)
    if job.config.problem.weights == "clients":
        return None
    known = slots if plan is None else precisions(slots, job.shape[0] * job.shape[1], plan.training_mu())
    return (known / known.sum()).astype(np.float32)
