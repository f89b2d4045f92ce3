"""The demo on tables: invented lengths of stay in days, a CSV file for every client, and the public schema of all of them."""

import csv
from pathlib import Path

import numpy as np

from fedpdm.data.schema import Category, Number, Schema, Target, to_toml
from fedpdm.engines.flower.init import job_from
from fedpdm.engines.flower.job import Evaluation, Job
from fedpdm.privacy.interval_release import LEAST_CLIENTS

__all__ = ["table_job", "write_tables"]

ROWS, SLOTS = 800, 1000
SCHEMA = Schema(
    label="days",
    target=Target(low=0, high=30),
    columns={
        "age": Number(low=18, high=100),
        "ward": Category(levels=["surgery", "maternity"], baseline="medicine"),
        "urgent": Category(levels=["yes"], baseline="no"),
    },
)


def write_tables(folder: Path, nodes: int) -> list[Path]:
    """Write a table for every client, and schema.toml beside them.

    Parameters
    ----------
    folder : Path
        Where; it is created.
    nodes : int
        How many.

    Returns
    -------
    list of Path
        The tables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.toml").write_text(to_toml(SCHEMA), encoding="utf-8")
    paths = [folder / f"hospital-{client}.csv" for client in range(nodes)]
    for client, path in enumerate(paths):
        rng = np.random.default_rng(client)
        age = np.clip(rng.normal(rng.uniform(50, 70), 15, ROWS), 18, 99).round()
        ward, urgent = rng.choice(["surgery", "medicine", "maternity"], ROWS), rng.random(ROWS) < 0.4
        mean = np.exp(1.2 + 0.012 * (age - 50) + 0.35 * (ward == "surgery") - 0.3 * (ward == "maternity") + 0.45 * urgent)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "ward", "urgent", "days"])
            writer.writerows(zip(age.astype(int), ward, np.where(urgent, "yes", "no"), rng.poisson(mean), strict=True))
    return paths


def table_job(folder: Path, nodes: int, rounds: int, epsilon: float) -> Job:
    """Make the job of these tables: the preset private-table, with an evaluation by the clients, and intervals.

    Parameters
    ----------
    folder : Path
        That of `write_tables`.
    nodes, rounds, epsilon
        Clients, rounds, and every client's budget; the evaluation has a tenth of it on top.

    Returns
    -------
    Job
        The job.
    """
    intervals = str(nodes >= LEAST_CLIENTS).lower()
    settings = [
        f"data.clients={nodes}",
        f"rounds.total={rounds}",
        f"privacy.epsilon={epsilon}",
        f"metrics.intervals={intervals}",
    ]
    evaluation = Evaluation(epsilon=0.1 * epsilon, largest_error=0.5)
    return job_from("private-table", settings, slots=[SLOTS], schema=folder / "schema.toml", evaluation=evaluation)
