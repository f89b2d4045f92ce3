"""The ServerApp: the job of the run config, a run folder, and the Strategy."""

import logging
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import Field, ValidationError

from fedpdm.config import Section
from fedpdm.config.keys import dotted
from fedpdm.engines.flower.job import Job, read_job
from fedpdm.errors import ConfigError, UserError
from fedpdm.runs.folder import FolderInUse, RunFolder

__all__ = ["app", "ServerOptions", "read_run_config", "train"]

_log = logging.getLogger("flwr")
PREFIX = "flower."

app = ServerApp()


class ServerOptions(Section):
    """The keys `flower.*` of the run config: how the server runs. The job defines the training."""

    job: str = Field(description="the job's file on the server (`fedpdm flower init`)")
    out: str = Field(description="run folder on the server; a run of this job in it is continued")
    nodes: int = Field(
        default=0, ge=0, description="clients that must be connected to begin a round; 0: all, or the least of a secure sum"
    )
    wait: float = Field(default=600.0, gt=0, description="seconds to wait for them")
    messages: int = Field(
        default=0, ge=0, description="messages that must be used in a round, else the run stops; 0: half of those asked for"
    )
    timeout: float = Field(default=600.0, gt=0, description="seconds to wait for the replies of a round")
    patience: float = Field(
        default=0.0,
        ge=0,
        description="secure sums: a silent member has dropped out after this many times what the others took; 0: timeout",
    )
    data_dir: str = Field(default="", description="the server's folder with the files of known data sets")


def read_run_config(run_config: dict[str, Any]) -> tuple[Job, ServerOptions]:
    """Read the job and the server's options; an empty value means unset.

    Parameters
    ----------
    run_config : dict
        Flower's run config.

    Returns
    -------
    Job, ServerOptions
        The job and the options.
    """
    values = {key.removeprefix(PREFIX): value for key, value in run_config.items() if value != ""}
    if foreign := [key for key in run_config if not key.startswith(PREFIX)]:
        raise ConfigError(
            f"{', '.join(foreign[:3])}: the settings of the training are in the job's file (flower.job), not in the run config."
        )
    try:
        options = ServerOptions.model_validate(values)
    except ValidationError as error:
        wrong = "; ".join(f"{PREFIX}{dotted(e['loc'])}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"The run config does not fit: {wrong}.") from None
    return read_job(Path(options.job)), options


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train; a user's mistake ends the run with one line."""
    try:
        train(grid, dict(context.run_config))
    except UserError as error:
        sys.tracebacklimit = 0  # Flower logs the exception with its traceback, which does not help the user
        raise UserError(str(error)) from None


def train(grid: Grid, run_config: dict[str, Any]) -> dict[str, Any]:
    """Run the job of this run config to its end, from its checkpoint if there is one.

    Parameters
    ----------
    grid, run_config
        Flower's grid and run config.

    Returns
    -------
    dict
        The summary.
    """
    job, options = read_run_config(run_config)
    test, checksums = _test_data(job, options)
    folder = _open_patiently(job, options, checksums)
    with closing(folder):
        if summary := folder.summary():
            _log.info("fedpdm: the run in %s is complete already: nothing to do", folder.path)
            return summary
        return _run(grid, job, options, folder, test)


def _run(grid: Grid, job: Job, options: ServerOptions, folder: RunFolder, test: Any) -> dict[str, Any]:
    from fedpdm.engines.flower.cohort.coordinator import CohortCoordinator
    from fedpdm.engines.flower.compile_cache import use_compile_cache
    from fedpdm.engines.flower.job import job_toml
    from fedpdm.engines.flower.protocol import Meeting
    from fedpdm.engines.flower.server.coordinator import Coordinator
    from fedpdm.engines.flower.server.known_keys import KnownKeys
    from fedpdm.engines.flower.server.patience import Patience
    from fedpdm.engines.flower.server.strategy import Nodes, PrimalDual, SecureSums

    use_compile_cache(folder.path)
    clients = job.config.data.clients
    patience = Patience(options.timeout, options.patience)
    nodes = Nodes(grid, Meeting(job.digest, job_toml(job)), clients, patience, KnownKeys(folder.path))
    if job.config.privacy.trust == "cohorts":
        coordinator = CohortCoordinator(job, folder, test)
        least = options.nodes or coordinator.least
        nodes.wait_for(least if coordinator.complete else clients, options.wait)  # the roster needs everybody's key
        strategy = SecureSums(coordinator, nodes, least, options.wait, patience)
    else:
        least = options.nodes or clients
        nodes.wait_for(least, options.wait)
        coordinator = Coordinator(job, folder, test, options.messages)
        strategy = PrimalDual(coordinator, nodes, least, options.wait)
    strategy.summary()
    strategy.start(grid, timeout=options.timeout)
    summary = coordinator.finish()
    _log.info("fedpdm: %s", summary["guarantee"])
    _log.info("fedpdm: the run folder is %s", folder.path)
    return summary


def _open_patiently(job: Job, options: ServerOptions, checksums: dict[str, str]) -> RunFolder:
    """Open the run folder; wait until the process of an abandoned earlier run has ended."""
    from fedpdm.engines.flower.server.run_folder import open_run

    until = time.monotonic() + options.wait
    while True:
        try:
            return open_run(Path(options.out), job, checksums)
        except FolderInUse as error:
            if time.monotonic() > until:
                raise
            _log.info("fedpdm: waiting: %s", error)
            time.sleep(2.0)


def _test_data(job: Job, options: ServerOptions) -> tuple[Any, dict[str, str]]:
    """Return the test examples of a known data set, and its files' checksums; nothing for other data."""
    from fedpdm.data.datasets import DATASETS

    if job.config.data.name not in DATASETS:
        return None, {}
    from fedpdm.data.prepare import build_federation
    from fedpdm.engines.simulation.measures import TestSet

    known = build_federation(job.config, Path(options.data_dir) if options.data_dir else None, progress=False)
    return TestSet(known.test_features, known.test_labels), known.checksums
