"""Many runs: finished ones are stored and not run again, and runs that differ only in their seed share a compilation."""

import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedpdm.choices import METRICS
from fedpdm.config import Config, digest, validate
from fedpdm.data import Federation
from fedpdm.data.prepare import build_federation
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.errors import ConfigError, DivergedError
from fedpdm.runs.evaluation import evaluation

__all__ = ["Result", "figure_keys", "run_sweep"]

# The stored result of a run: "config" (its digest), "seed", curves "round", "accuracy", "uplink_bytes", "downlink_bytes", and
# the numbers of its end: "last", "averaged", those of `figure_keys`, "nonzero_fraction", "objective", "stationarity",
# "seconds"; or only "diverged".
Result = dict[str, Any]
VERSION = 1  # raise it when the same settings give other results: then stored ones are computed again
OWN_COLUMN = ("accuracy", "majority-rate")  # accuracy has a curve, the majority rate is the same for all
OnResult = Callable[[int, int, Config, Result], None]


def run_sweep(configs: Sequence[Config], store: Path, on_result: OnResult | None = None) -> list[Result]:
    """Return the results of all these settings, in their order.

    Settings that differ only in the seed run one after the other in one simulator. There is no ledger: a sweep measures on data
    that its owner may see, and releases nothing.

    Parameters
    ----------
    configs : sequence of Config
        The settings.
    store : Path
        A file of JSON lines with the finished results.
    on_result : callable, optional
        Called with the number of finished runs, the number of all, the settings and the result.

    Returns
    -------
    list of Result
        One result for each of the settings.
    """
    known = _read(store)
    groups: dict[str, list[Config]] = {}
    for config in configs:
        groups.setdefault(digest(config.model_copy(update={"seed": 0})), []).append(config)
    done = 0
    for group in groups.values():
        simulation = None
        for config in group:
            key = digest(config)
            if key not in known:
                simulation = simulation or build_simulation(config, _federation(_data_key(config)))
                known[key] = _run(simulation, config)
                _append(store, known[key])
            done += 1
            if on_result:
                on_result(done, len(configs), config, known[key])
    return [known[digest(config)] for config in configs]


def figure_keys() -> list[str]:
    """Return the keys of the test figures in a result.

    Returns
    -------
    list of str
        The keys.
    """
    return [metric.key for metric in METRICS.values() if metric.target == "classes" and metric.name not in OWN_COLUMN]


def _run(simulation: Simulation, config: Config) -> Result:
    if simulation.setup.problem.loss.target != "classes":
        raise ConfigError(f"A comparison is of classifiers, which problem.loss={config.problem.loss} does not make.")
    simulation.restart(config.seed)
    began, compiled = time.perf_counter(), simulation.compile_seconds
    try:
        rows = list(simulation.run())
    except DivergedError as error:
        return {"config": digest(config), "version": VERSION, "seed": config.seed, "diverged": str(error)}
    seconds = time.perf_counter() - began - (simulation.compile_seconds - compiled)
    measured = [row for row in rows if "test_accuracy" in row]
    last = {key: value for row in rows for key, value in row.items()}
    return {
        "config": digest(config),
        "version": VERSION,
        "seed": config.seed,
        "round": [row["round"] for row in measured],
        "accuracy": [row["test_accuracy"] for row in measured],
        "uplink_bytes": [row["uplink_bytes"] for row in measured],
        "downlink_bytes": [row["downlink_bytes"] for row in measured],
        "last": last["test_accuracy"],
        "averaged": round(simulation.test_accuracy(simulation.averaged_model), 6),
        **_figures(simulation),
        **{key: last.get(key) for key in ("nonzero_fraction", "objective", "stationarity")},
        "seconds": round(seconds, 3),
    }


def _figures(simulation: Simulation) -> dict[str, float | None]:
    """Return the test figures of the last model for a comparison; none for a custom model without a link."""
    problem, federation = simulation.setup.problem, simulation.federation
    if problem.loss.link is None:
        return dict.fromkeys(figure_keys())
    test = federation.test_features, federation.test_labels
    found = evaluation(problem, simulation.model, test, federation.class_names)
    return {key: found[key]["value"] if key in found else None for key in figure_keys()}


def _data_key(config: Config) -> str:
    """Return the settings that determine a federation."""
    return json.dumps([config.data.model_dump(), config.privacy.mechanism == "sound"], sort_keys=True)


@functools.lru_cache(maxsize=2)
def _federation(key: str) -> Federation:
    data, sound = json.loads(key)
    privacy = {"mechanism": "sound", "epsilon": 1.0} if sound else {}
    participants = {"participants": min(30, data["clients"])}
    return build_federation(validate({"data": data, "privacy": privacy, "rounds": participants}), progress=False)


def _read(store: Path) -> dict[str, Result]:
    if not store.exists():
        return {}
    lines = store.read_text().splitlines()
    results = {}
    for line in lines:
        try:
            result = json.loads(line)
        except json.JSONDecodeError:  # an incomplete line of a killed sweep
            continue
        if result.get("version", 1) == VERSION:
            results[result["config"]] = result
    return results


def _append(store: Path, result: Result) -> None:
    store.parent.mkdir(parents=True, exist_ok=True)
    whole = store.exists() and store.stat().st_size and not store.read_bytes().endswith(b"\n")
    with store.open("a") as file:
        file.write(("\n" if whole else "") + json.dumps(result) + "\n")
