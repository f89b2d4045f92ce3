"""From settings to a finished run."""

import time
from collections.abc import Callable
from typing import Any

from fedpdm.config import Config, digest
from fedpdm.data.schema import to_toml
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.errors import UserError
from fedpdm.runs.clients import describe_clients
from fedpdm.runs.folder import RunFolder
from fedpdm.runs.record import summarise
from fedpdm.runs.simulated_ledger import open_simulated_ledger

__all__ = ["OnRows", "run"]

CHECKPOINT_SECONDS = 2.0
SCHEMA_COMMENT = "The columns that the model of this run was trained on; `fedpdm predict` encodes new rows by it."

OnRows = Callable[[list[dict[str, Any]]], None]


def run(config: Config, folder: RunFolder, simulation: Simulation, on_rows: OnRows | None = None) -> dict[str, Any]:
    """Train, from the folder's checkpoint if there is one, and return the summary that is also written there."""
    if folder.manifest()["data_checksums"] != simulation.federation.checksums:
        raise UserError(f"The data of {folder.path} differ from those that the run began with: cannot go on.")
    if simulation.federation.schema:
        folder.keep_schema(to_toml(simulation.federation.schema, SCHEMA_COMMENT))
    with open_simulated_ledger(folder.path / "ledger.sqlite", simulation, job=digest(config)) as books:
        seconds = _train(folder, simulation, digest(config), on_rows)
        summary = summarise(config, simulation, folder, seconds) | books.summary()
    federation = simulation.federation
    models = {"model": simulation.model, "averaged_model": simulation.averaged_model}
    if federation.standard is not None:
        models = {name: federation.standard.fold(model) for name, model in models.items()}
    about = {"data": config.data.name, "loss": config.problem.loss}
    names = {"class_names": federation.class_names, "feature_names": federation.feature_names}
    folder.keep_clients(describe_clients(simulation))
    folder.finish(models, about | names, summary)
    return summary


def _train(folder: RunFolder, simulation: Simulation, name: str, on_rows: OnRows | None) -> float:
    """Advance to the end, keeping rows and checkpoints; returns the seconds that it took, without compilation."""
    state, done = folder.load_checkpoint(simulation.state, name) or (simulation.state, 0)
    simulation.restore(state, done, folder.path / "clients.log")
    began = saved = time.perf_counter()
    compiled = simulation.compile_seconds
    while not simulation.done:
        rows = simulation.advance()
        folder.append(rows)
        if on_rows:
            on_rows(rows)
        if time.perf_counter() - saved > CHECKPOINT_SECONDS or simulation.done:
            simulation.sync()
            folder.save_checkpoint(simulation.state, simulation.round, name)
            saved = time.perf_counter()
    return time.perf_counter() - began - (simulation.compile_seconds - compiled)
