"""The server's state of a run, and the sizes of a round's messages."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jax import Array

from fedpdm.compression.links import Downlink
from fedpdm.engines.flower.protocol import Reply, Request

__all__ = ["CoordinatorState", "Sizes"]


class CoordinatorState(NamedTuple):
    """All that must survive the server's process."""

    server: Any
    downlink: Downlink
    tail_sum: Array
    accepted: Array  # [clients, 16] uint8: the name of each client's last message that was used; zeros: none
    asked: Array  # [clients] how often each client was asked: an upper bound on its participations
    used: Array  # [clients] how many of its messages were used
    traffic: Array  # [links, 2]: mebibytes and bytes so far
    cohort: Any = ()  # of secure sums: the cohort's state
    begun: Any = ()  # of secure sums: rounds whose sum was begun


class Sizes(NamedTuple):
    """What travelled in a round, in bytes by client, and who was asked for something that counts as a participation."""

    up: dict[int, int]
    down: dict[int, int]
    asked: list[int]
    indices: Mapping[int, int]  # of the uplink's indices alone

    @classmethod
    def none(cls) -> "Sizes":
        """Nothing yet."""
        return cls({}, {}, [], {})

    def more(self, asked: Mapping[int, Request], used: Mapping[int, Reply]) -> "Sizes":
        """With these requests, and these of the replies."""
        down = self.down | {client: self.down.get(client, 0) + len(request.vectors) for client, request in asked.items()}
        up = self.up | {client: self.up.get(client, 0) + len(reply.vectors) for client, reply in used.items()}
        return self._replace(up=up, down=down)
