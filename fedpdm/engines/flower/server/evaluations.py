"""The clients' evaluations of the model: noised counts, added up, and the measures that follow from them."""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.compression.wire import WireError, decode
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Reply, Request
from fedpdm.engines.flower.server.replies import NodeAnswer, valid_replies
from fedpdm.metrics import count, counts_of, metrics_of_counts, vector_of
from fedpdm.privacy.evaluation import SENSITIVITY

__all__ = ["Evaluations"]

LARGEST_COUNT = 1e9


class Evaluations:
    """The evaluations of a job, in the file evaluations.jsonl of its run folder."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.path = job, folder / "evaluations.jsonl"
        self._rounds = job.evaluation.rounds(job.config.rounds.total) if job.evaluation else []

    def rows(self) -> list[dict[str, Any]]:
        """One row per evaluation, oldest first."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def due(self, done: int) -> bool:
        """Tell whether there should be an evaluation after this number of rounds, and there was none yet."""
        return done in self._rounds and all(row["round"] != done for row in self.rows())

    def last(self) -> dict[str, Any] | None:
        """The last evaluation."""
        return rows[-1] if (rows := self.rows()) else None

    def accepted(self, client: int) -> str:
        """The client's last counts that were used, by the name of their message; "" if there are none."""
        named = (row.get("messages", {}).get(str(client), "") for row in reversed(self.rows()))
        return next(filter(None, named), "")

    def figures(self, done: int) -> dict[str, Any]:
        """The last evaluation in the place of a summary's test figures, if it is of the model after so many rounds."""
        last = self.last()
        if not last or last["round"] != done or "accuracy" not in last:
            return {}
        of = "_averaged" if self.job.config.metrics.released == "averaged" else ""
        return {f"metrics{of}": last, f"test_accuracy{of}": last["accuracy"]["value"]}

    def multipliers(self) -> list[float]:
        """Return the noise multipliers of all requested evaluations."""
        if self.job.evaluation is None:
            return []
        return [self.job.evaluation.cost_multiplier(self.job.config)] * len(self.rows())

    def take(self, asked: dict[int, Request], replies: Iterable[NodeAnswer]) -> tuple[dict[str, Any], list[str]]:
        """Add up the replies; return the row, and a line for every reply that is not used."""
        messages, dropped = valid_replies(asked, replies)
        counts, used = [], {}
        for client, reply in messages.items():
            try:
                counts.append(self._counts(reply))
                used[str(client)] = reply.message
            except WireError as error:
                dropped.append(f"client {client}: {error.reason}: {error}")
        done = next(iter(asked.values())).round + 1
        row = {"round": done, "clients": len(counts), **(self._measures(np.sum(counts, axis=0), len(counts)) if counts else {})}
        row["messages"] = used  # named in the next request, so that each client knows that its counts were used
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return row, dropped

    def _counts(self, reply: Reply) -> np.ndarray:
        assert self.job.evaluation is not None
        size = _size(len(self.job.classes), self.job.evaluation.bins)
        (part,) = decode(reply.vectors, dimensions=[size], limit=LARGEST_COUNT)
        if len(part.values) != size:
            raise WireError("count", f"Expected {size} counts, got {len(part.values)}.")
        return part.values.astype(np.float64)

    def _measures(self, vector: np.ndarray, clients: int) -> dict[str, Any]:
        """All figures that boards ask for, with intervals that hold the noise."""
        assert self.job.evaluation is not None
        deviation = self.job.evaluation.noise_multiplier(self.job.config) * SENSITIVITY * math.sqrt(clients)
        counts = counts_of(vector, len(self.job.classes), self.job.evaluation.bins)
        told = metrics_of_counts(counts, self.job.classes, deviation)
        return {"noise": float(f"{deviation:.6g}"), **told, "threshold": self.job.settings.metrics.threshold}


def _size(classes: int, bins: int) -> int:
    """How many numbers an evaluation has."""
    return vector_of(count(np.zeros((0, classes)), np.zeros(0, int), bins=bins)).size
