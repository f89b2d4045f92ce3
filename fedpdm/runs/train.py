"""From settings to a finished run."""

import contextlib
import functools
import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from fedpdm.config import Config, digest, load_config
from fedpdm.data.basis_files import with_basis_pinned
from fedpdm.data.datasets import DATASETS
from fedpdm.data.encoders import with_encoder_pinned
from fedpdm.data.federation import Federation
from fedpdm.engines.simulation.build import resolved_simulation
from fedpdm.engines.simulation.hosts import is_first, meet, require_same
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.errors import ConfigError, UserError
from fedpdm.problem.penalties import Penalty
from fedpdm.runs.attackers import attack_summary
from fedpdm.runs.clients import describe_clients
from fedpdm.runs.cluster import versions
from fedpdm.runs.finished import FinishedRun, read_run
from fedpdm.runs.folder import RunFolder
from fedpdm.runs.intervals import intervals_of
from fedpdm.runs.nominal import nominal_summary
from fedpdm.runs.progress import Progress
from fedpdm.runs.record import ModelNames, RunRecord
from fedpdm.runs.simulated_ledger import SimulatedLedger
from fedpdm.runs.tracking import check_trackers, open_trackers
from fedpdm.setup.band import sums_warning
from fedpdm.setup.build import LossFactory
from fedpdm.setup.defaults import warning
from fedpdm.setup.directions import federate
from fedpdm.setup.resolve import resolve

__all__ = ["OnRows", "new_run_path", "run", "train"]

CHECKPOINT_SECONDS = 2.0

OnRows = Callable[[list[dict[str, Any]]], None]


def train(
    config: Config | str | None = None,
    out: Path | str | None = None,
    *,
    resume: Path | str | None = None,
    federation: Federation | None = None,
    loss: LossFactory | None = None,
    penalty: Penalty | None = None,
    data_dir: Path | None = None,
    progress: bool = False,
    track: Iterable[str] = (),
) -> FinishedRun:
    """Train in a run folder, without a report; `fedpdm.training.train` writes the report too.

    Parameters
    ----------
    config, out, resume, federation, loss, penalty, data_dir, progress, track
        As in `fedpdm.training.train`.

    Returns
    -------
    FinishedRun
        The run.
    """
    if resume is not None and (config is not None or out is not None):
        raise ConfigError(f"resume={resume} uses the settings and the folder of that run: give neither config nor out.")
    if resume is None and config is None:
        raise ConfigError("train needs settings (config), or the folder of a run to continue (resume).")
    given = None if resume is None else Path(resume)
    build = functools.partial(_simulation, loss=loss, penalty=penalty)
    if not is_first():  # this host helps the first one, which writes the run folder
        with tempfile.TemporaryDirectory() as own:
            if given is not None:
                shutil.copytree(given, own, dirs_exist_ok=True)
            return _trained(config, Path(own), given is not None, federation, build, data_dir, False, [])
    path = given or (Path(out) if out is not None else None)
    return _trained(config, path, given is not None, federation, build, data_dir, progress, check_trackers(track))


def _trained(
    config: Config | str | None,
    path: Path | None,
    resumes: bool,
    federation: Federation | None,
    build: Callable[[Config, Federation, Path], Simulation],
    data_dir: Path | None,
    progress: bool,
    trackers: list[str],
) -> FinishedRun:
    meet("every host has its own copy of the folder")
    if path is not None and resumes:
        return _resumed(path, federation, build, data_dir, progress, trackers)
    chosen = load_config(config) if isinstance(config, str) else config or Config()
    path = path or new_run_path(chosen.data.name)
    RunFolder.check_free(path)
    chosen = with_encoder_pinned(chosen)
    if federation is None:
        federation = federate(chosen, data_dir, progress=progress)
    chosen = resolve(with_basis_pinned(chosen), federation)  # after the rows were mapped: errors name the file
    for said in filter(None, (warning(chosen, federation), sums_warning(chosen)) if progress else ()):
        print(f"fedpdm: {said}", file=sys.stderr)
    simulation = build(chosen, federation, path)
    if progress and (attack := simulation.schedule.attack) and attack.unchecked:
        print(f"fedpdm: messages are not checked: {attack.unchecked}.", file=sys.stderr)
    with contextlib.closing(RunFolder.create(path, chosen, federation.checksums)) as folder:
        return _watched(chosen, folder, simulation, progress, trackers)


def new_run_path(name: str) -> Path:
    """Return a folder below runs/ that does not exist yet, by name and time.

    Parameters
    ----------
    name : str
        The first part of the folder's name.

    Returns
    -------
    Path
        The folder.
    """
    path = Path("runs") / f"{Path(name).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(free for free in itertools.chain([path], others) if not free.exists())


def _simulation(
    config: Config, federation: Federation, path: Path, loss: LossFactory | None, penalty: Penalty | None
) -> Simulation:
    """Build the simulator of resolved settings, with its ledger in the run folder."""
    require_same(json.dumps([digest(config), federation.checksums, versions()]))
    ledger = functools.partial(SimulatedLedger, path / "ledger.sqlite", digest(config))
    return resolved_simulation(config, federation, loss, penalty, ledger)


def _resumed(
    path: Path,
    federation: Federation | None,
    build: Callable[[Config, Federation, Path], Simulation],
    data_dir: Path | None,
    progress: bool,
    trackers: list[str],
) -> FinishedRun:
    with contextlib.closing(RunFolder.reopen(path)) as folder:
        config = folder.config()
        if folder.summary():
            return read_run(path)
        if federation is None:
            federation = federate(config, data_dir, progress=progress)
        return _watched(config, folder, build(config, federation, path), progress, trackers)


def _watched(config: Config, folder: RunFolder, simulation: Simulation, progress: bool, trackers: list[str]) -> FinishedRun:
    """Run to the end, with progress and trackers."""
    with Progress(config.rounds.total, enabled=progress) as line, open_trackers(trackers, folder, config) as tracking:

        def on_rows(rows: list[dict[str, Any]]) -> None:
            line.update(rows)
            tracking.rows(rows)

        tracking.finish(run(config, folder, simulation, on_rows))
    return read_run(folder.path)


def run(config: Config, folder: RunFolder, simulation: Simulation, on_rows: OnRows | None = None) -> dict[str, Any]:
    """Run a simulation of resolved settings in an open folder, from its checkpoint if there is one.

    Parameters
    ----------
    config : Config
        The resolved settings.
    folder : RunFolder
        The open folder, with a manifest.
    simulation : Simulation
        The simulation.
    on_rows : callable, optional
        Called with new rows of measurements.

    Returns
    -------
    dict
        The summary.
    """
    federation = simulation.federation
    if folder.manifest()["data_checksums"] != federation.checksums:
        raise UserError(f"The data of {folder.path} differ from those that the run began with: it cannot continue.")
    if simulation.plan and not simulation.ledger:
        raise ValueError("A run under the sound mechanism needs a ledger: give one to the simulation.")
    known = federation.schema is not None or config.data.name in DATASETS
    features = federation.original_names or federation.feature_names
    names = ModelNames(federation.class_names, features, federation.schema, known)
    record = RunRecord(config, folder, names)
    record.require_linear(simulation.setup.problem.loss)
    with simulation.ledger or contextlib.nullcontext() as ledger:
        seconds = _advance(record, simulation, on_rows)
        intervals = intervals_of(config, simulation)
        more = ledger.summary() if ledger else nominal_summary(config, simulation)
    more |= attack_summary(simulation)
    more["converged"] = simulation.converged if config.rounds.tolerance else None
    return record.finish(
        simulation,
        seconds,
        simulation.compile_seconds,
        describe_clients(simulation),
        more,
        federation.standard,
        simulation.steadiness(),
        federation.validation,
        intervals,
    )


def _advance(record: RunRecord, simulation: Simulation, on_rows: OnRows | None) -> float:
    """Advance to the end, store rows and checkpoints, and return the seconds without compilation."""
    state, done = record.begin(simulation.state)
    simulation.restore(state, done, record.folder.path / "clients.log")
    began = saved = time.perf_counter()
    compiled = simulation.compile_seconds
    while not simulation.done:
        rows = simulation.advance()
        record.add(rows)
        if on_rows:
            on_rows(rows)
        if time.perf_counter() - saved > CHECKPOINT_SECONDS or simulation.done:
            simulation.sync()
            record.checkpoint(simulation.state, simulation.round)
            saved = time.perf_counter()
    return time.perf_counter() - began - (simulation.compile_seconds - compiled)
