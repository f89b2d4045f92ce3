"""From settings to a finished run."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpdm.algorithms import ALGORITHMS, Algorithm, LocalPlan
from fedpdm.config import Config, digest
from fedpdm.data import PARTITIONS, Federation, clip_norms, load_dataset, make_federation
from fedpdm.engines.simulation import Schedule, Simulation
from fedpdm.errors import UserError
from fedpdm.problem import LOSSES, Problem, penalties
from fedpdm.problem.penalties import Penalty
from fedpdm.rounds import Setup
from fedpdm.runs import RunFolder

__all__ = ["build_federation", "build_setup", "build_simulation", "run"]

CHECKPOINT_SECONDS = 2.0

OnRows = Callable[[list[dict[str, Any]]], None]


def build_federation(config: Config, data_dir: Path | None = None, progress: bool = True) -> Federation:
    """Load the data set, cut its norms, and deal it to the clients."""
    data = config.data
    dataset = load_dataset(data.name, data_dir=data_dir, progress=progress)
    if data.radius:
        dataset = dataset._replace(
            features=clip_norms(dataset.features, data.radius),
            test_features=clip_norms(dataset.test_features, data.radius),
        )
    options: dict[str, Any] = {}
    if data.partition == "labels":
        options["labels_per_client"] = data.labels_per_client
    if data.partition == "dirichlet":
        options["alpha"] = data.dirichlet_alpha
    parts = PARTITIONS[data.partition](dataset.labels, data.clients, seed=data.partition_seed, **options)
    return make_federation(dataset, parts)


def build_penalty(config: Config, clients: int) -> Penalty:
    """The penalty h on the mean objective: with penalty_scale "sum" it is divided by the number of clients."""
    p = config.problem
    options: dict[str, Any] = {"strength": p.gamma}
    match p.penalty:
        case "none":
            return penalties.none()
        case "box":
            options = {"lower": p.penalty_lower, "upper": p.penalty_upper}
        case "elastic-net":
            options["mix"] = p.penalty_mix
        case "mcp" | "scad":
            options["concavity"] = p.penalty_concavity
    penalty = penalties.PENALTIES[p.penalty](**options)
    return penalties.scaled(penalty, 1 / clients) if p.penalty_scale == "sum" else penalty


def build_algorithm(config: Config) -> Algorithm:
    return ALGORITHMS[config.algorithm.name](rho=config.algorithm.rho, server_rule=config.algorithm.server_rule)


def build_setup(config: Config, clients: int) -> Setup:
    """Problem, algorithm and local plan of these settings."""
    problem = Problem(LOSSES[config.problem.loss](), build_penalty(config, clients), config.problem.beta)
    return Setup(problem, build_algorithm(config), LocalPlan(**config.local.model_dump()))


def build_simulation(config: Config, federation: Federation) -> Simulation:
    """The simulator, ready to run these settings on this federation."""
    rounds, metrics = config.rounds, config.metrics
    schedule = Schedule(rounds.total, rounds.participants, config.seed, rounds.all_first, **metrics.model_dump())
    return Simulation(build_setup(config, federation.clients), federation, schedule)


def run(config: Config, folder: RunFolder, simulation: Simulation, on_rows: OnRows | None = None) -> dict[str, Any]:
    """Train, from the folder's checkpoint if there is one, and return the summary that is also written there."""
    if folder.manifest()["data_checksums"] != simulation.federation.checksums:
        raise UserError(f"The data of {folder.path} differ from those that the run began with: cannot go on.")
    name = digest(config)
    checkpoint = folder.load_checkpoint(simulation.state, name)
    if checkpoint:
        simulation.restore(*checkpoint)
    began = saved = time.perf_counter()
    while not simulation.done:
        rows = simulation.advance()
        folder.append(rows)
        if on_rows:
            on_rows(rows)
        if time.perf_counter() - saved > CHECKPOINT_SECONDS or simulation.done:
            folder.save_checkpoint(simulation.state, simulation.round, name)
            saved = time.perf_counter()
    summary = summarise(config, simulation, folder, time.perf_counter() - began)
    models = {"model": simulation.model, "averaged_model": simulation.averaged_model}
    folder.finish(models, {"data": config.data.name, "loss": config.problem.loss}, summary)
    return summary


def summarise(config: Config, simulation: Simulation, folder: RunFolder, seconds: float) -> dict[str, Any]:
    """The run in a few numbers (see docs/run-folder.md)."""
    last = {key: value for row in folder.rows() for key, value in row.items()}
    summary = {
        "test_accuracy": simulation.test_accuracy(simulation.model),
        "test_accuracy_averaged": simulation.test_accuracy(simulation.averaged_model),
        "objective": last["objective"],
        "nonzero_fraction": last["nonzero_fraction"],
        "stationarity": last["stationarity"],
        "rounds": simulation.round,
        "seconds": round(seconds - simulation.compile_seconds, 3),
        "compile_seconds": round(simulation.compile_seconds, 3),
        "uplink_bytes": simulation.uplink_bytes,
        "downlink_bytes": simulation.downlink_bytes,
        "uplink_bits_paper": 32 * simulation.model.size * config.rounds.total * config.rounds.participants,
        "epsilon": None,
        "delta": None,
        "relation": None,
        "mechanism": config.privacy.mechanism,
    }
    summary["remark"] = remark(config, summary, simulation.federation.clients)
    return summary


def remark(config: Config, summary: dict[str, Any], clients: int) -> str | None:
    """Words for a result that the numbers alone would misrepresent."""
    if summary["nonzero_fraction"] > 0:
        return None
    scale = clients if config.problem.penalty_scale == "sum" else 1
    threshold = config.problem.gamma / (config.algorithm.rho * scale)
    advice = "lower problem.gamma"
    if scale == 1:
        advice += ', or set problem.penalty_scale="sum" if gamma is meant for the sum over clients'
    return (
        f"The model is zero: the penalty removed every coordinate (the prox of the server cuts at gamma/rho = "
        f"{threshold:g}). It has learnt nothing and always predicts the first class: {advice}."
    )
