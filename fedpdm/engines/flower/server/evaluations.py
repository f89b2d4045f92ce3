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
from fedpdm.engines.flower.job_evaluation import tally_sensitivity, tally_size
from fedpdm.engines.flower.protocol import Refused, Reply, Request
from fedpdm.engines.flower.server.replies import NodeAnswer, valid_replies
from fedpdm.errors import UserError
from fedpdm.hostile.vectors import why_impossible
from fedpdm.metrics import counts_of, metrics_of_counts, metrics_of_sums, metrics_of_times

__all__ = ["Evaluations"]

LARGEST_COUNT = 1e9


class Evaluations:
    """The evaluations of a job, in the file evaluations.jsonl of its run folder."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.path = job, folder / "evaluations.jsonl"
        self._rounds = job.evaluation.rounds(job.config.rounds.total) if job.evaluation else []

    def rows(self) -> list[dict[str, Any]]:
        """One row per evaluation, oldest first."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
            return [json.loads(line) for line in lines if line.endswith("}")]  # the last line may be cut
        except ValueError as error:
            raise UserError(f"{self.path} is broken ({error}): put the backup of it back.") from None

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
        if not last or last["round"] != done or not last["clients"]:
            return {}
        of = "_averaged" if self.job.config.metrics.released == "averaged" else ""
        accuracy = {f"test_accuracy{of}": last["accuracy"]["value"]} if "accuracy" in last else {}
        return {f"metrics{of}": last, **accuracy}

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
            except Refused as refused:
                dropped.append(f"client {client}: {refused}")
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
        loss = self.job.setup[0].problem.loss
        size, one = tally_size(self.job, loss), tally_sensitivity(self.job, loss)
        (part,) = decode(reply.vectors, dimensions=[size], limit=LARGEST_COUNT)
        if len(part.values) != size:
            raise WireError("count", f"Expected {size} counts, got {len(part.values)}.")
        noise = one * self.job.evaluation.noise_multiplier(self.job.config)
        if why := why_impossible(part.values, one * self.job.slots_of(reply.client), noise):
            raise Refused(*why.split(": ", 1))
        return part.values.astype(np.float64)

    def _measures(self, vector: np.ndarray, clients: int) -> dict[str, Any]:
        """All figures that boards ask for, with intervals that hold the noise."""
        job, loss = self.job, self.job.setup[0].problem.loss
        assert job.evaluation is not None
        bins = job.evaluation.bins
        deviation = job.evaluation.noise_multiplier(job.config) * tally_sensitivity(job, loss) * math.sqrt(clients)
        noise = {"noise": float(f"{deviation:.6g}")}
        target = job.table.target if job.table is not None else None
        if target is None:
            told = metrics_of_counts(counts_of(vector, len(job.classes), bins), job.classes, deviation)
            return {**noise, **told, "threshold": job.settings.metrics.threshold}
        if target.event:
            return noise | metrics_of_times(vector, target.bands, bins, deviation)
        largest = job.evaluation.largest_error
        return noise | metrics_of_sums(vector, target.low, target.high, loss.metrics, bins, largest, deviation)
