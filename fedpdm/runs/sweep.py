"""Many runs: finished ones are stored and not run again, and runs that differ only in their seed share a compilation."""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedpdm.choices import METRICS
from fedpdm.config import Config, digest
from fedpdm.data import Federation
from fedpdm.data.basis_files import is_file, public_digest
from fedpdm.data.datasets import DATASETS
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.engines.simulation.measures import figure_name
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.errors import ConfigError, DivergedError
from fedpdm.runs.cluster import each, forget, last_few
from fedpdm.runs.evaluation import figures_of
from fedpdm.runs.integrity import CHECKSUM
from fedpdm.setup.directions import federate

__all__ = ["Result", "figure_keys", "run_sweep", "stored_results"]

# The stored result of a run: "config" (its digest), "data" (a digest of the files, if the user gave any), "seed",
# curves "round", "accuracy" ("loss" if the label is a number or a time), "uplink_bytes", "downlink_bytes", and the numbers
# of its end: "last" and "averaged" (of that curve), those of `figure_keys`, "nonzero_fraction", "objective", "stationarity",
# "seconds"; or only "diverged".
Result = dict[str, Any]
VERSION = 1  # raise it when the same settings give other results: then stored ones are computed again
OWN_COLUMN = ("accuracy", "majority-rate")  # accuracy has a curve, the majority rate is the same for all
OnResult = Callable[[int, int, Config, Result], None]


def run_sweep(configs: Sequence[Config], store: Path, on_result: OnResult | None = None) -> list[Result]:
    """Return the results of all these settings, in their order.

    Settings that differ only in the seed run one after the other in one simulator. Stored results of a file that has another
    content now are run again. In a block `on_cluster` the workers of the cluster run them; the results are the same and are
    stored in the same file. There is no ledger: a sweep measures on data that its owner may see, and releases nothing.

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
    if any(config.data.name not in DATASETS or is_file(config.data.basis) for config in configs):
        forget()  # a file may have changed since an earlier call
    known = stored_results(store)
    groups: dict[str, list[Config]] = {}
    for config in configs:
        groups.setdefault(_group(config), []).append(config)
    ordered: dict[str, list[Config]] = {}  # settings that were given twice are run once
    for config in itertools.chain.from_iterable(groups.values()):
        ordered.setdefault(digest(config), []).append(config)
    done = itertools.count(1)

    def say(key: str) -> None:
        for config in ordered[key]:
            if on_result:
                on_result(next(done), len(configs), config, known[key])

    for key, own in ordered.items():  # in this order each table is read once
        if key in known and known[key].get("data") != _content(own[0]):
            del known[key]
    missing = [own[0] for key, own in ordered.items() if key not in known]
    for key in [key for key in ordered if key in known]:
        say(key)
    for config, result in each(_run, missing):
        key = digest(config)
        known[key] = result
        _append(store, result)
        say(key)
    return [known[digest(config)] for config in configs]


def figure_keys(target: str = "classes") -> list[str]:
    """Return the keys of the test figures in a result.

    Parameters
    ----------
    target : str
        What the label is: "classes", "number" or "time".

    Returns
    -------
    list of str
        The keys.
    """
    return [metric.key for metric in METRICS.values() if metric.target == target and metric.name not in OWN_COLUMN]


def _group(config: Config) -> str:
    """Return the settings without the seed: runs of one group share a simulator."""
    return digest(config.model_copy(update={"seed": 0}))


@last_few(1)
def _simulation(config: Config) -> Simulation:
    return build_simulation(config, _federation(_data_key(config), config))


def _run(config: Config) -> Result:
    if config.problem.sparsity is not None:
        raise ConfigError("A comparison measures models with all of their weights: leave problem.sparsity out.")
    try:
        simulation = _simulation(_group(config), config)
    except ConfigError as error:  # settings that fit one algorithm may not fit another
        raise ConfigError(f"With algorithm.name={config.algorithm.name}: {error}") from None
    simulation.restart(config.seed)
    began, compiled = time.perf_counter(), simulation.compile_seconds
    try:
        rows = list(simulation.run())
    except DivergedError as error:
        return {**_named(config), "diverged": str(error)}
    seconds = time.perf_counter() - began - (simulation.compile_seconds - compiled)
    name = figure_name(simulation.setup.problem)
    measured = [row for row in rows if name in row]
    last = {key: value for row in rows for key, value in row.items()}
    return {
        **_named(config),
        "round": [row["round"] for row in measured],
        name.removeprefix("test_"): [row[name] for row in measured],
        "uplink_bytes": [row["uplink_bytes"] for row in measured],
        "downlink_bytes": [row["downlink_bytes"] for row in measured],
        "last": last[name],
        "averaged": round(simulation.test_accuracy(simulation.averaged_model), 6),
        **_figures(simulation),
        **{key: last.get(key) for key in ("nonzero_fraction", "objective", "stationarity")},
        "seconds": round(seconds, 3),
    }


def _named(config: Config) -> Result:
    content = _content(config)
    return {"config": digest(config), "version": VERSION, "seed": config.seed} | ({"data": content} if content else {})


def _content(config: Config) -> str | None:
    """Return a digest of the content of the user's table and of a file of public rows; None: there are none.

    The files of a known data set never change.
    """
    known = {} if config.data.name in DATASETS else dict(_federation(_data_key(config), config).checksums)
    if is_file(config.data.basis):
        known["basis"] = public_digest(config.data.basis)
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest() if known else None


def _figures(simulation: Simulation) -> dict[str, float | None]:
    """Return the test figures of the last model for a comparison; none for a custom model without a link."""
    problem, federation = simulation.setup.problem, simulation.federation
    keys = figure_keys(problem.loss.target)
    if problem.loss.link is None:
        return dict.fromkeys(keys)
    test = federation.test_features, federation.test_labels
    found = figures_of(problem, simulation.model, test, federation)
    return {key: found[key]["value"] if key in found else None for key in keys}


def _data_key(config: Config) -> str:
    """Return the settings that determine a federation."""
    known = [config.data.model_dump(), config.privacy.mechanism, config.problem.loss]  # the loss names the kind of label
    if config.data.basis != "none" and config.data.basis_size == "auto":
        known += [config.privacy.model_dump(), config.cohorts.model_dump()]
    return json.dumps(known, sort_keys=True)


@last_few(2)
def _federation(config: Config) -> Federation:
    plain = config.metrics.model_copy(update={"threshold": None})  # then no rows are set apart
    return federate(config.model_copy(update={"metrics": plain}), progress=False)


def stored_results(store: Path) -> dict[str, Result]:
    """Read the finished results of a sweep.

    Parameters
    ----------
    store : Path
        A file of JSON lines; it need not exist.

    Returns
    -------
    dict of str to Result
        The results by the digest of their settings.
    """
    if not store.exists():
        return {}
    results = {}
    for line in store.read_bytes().splitlines():
        try:
            result = json.loads(line)
            whole = result.pop(CHECKSUM, None) in (None, _checksum(result))  # earlier releases wrote none
        except (ValueError, RecursionError, AttributeError, TypeError):  # a line that was cut off, or damaged
            continue
        if whole and result.get("version", 1) == VERSION:  # a damaged result is run again
            results[result["config"]] = result
    return results


def _checksum(result: Result) -> str:
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


def _append(store: Path, result: Result) -> None:
    store.parent.mkdir(parents=True, exist_ok=True)
    whole = store.exists() and store.stat().st_size and not store.read_bytes().endswith(b"\n")
    with store.open("a") as file:
        file.write(("\n" if whole else "") + json.dumps({**result, CHECKSUM: _checksum(result)}) + "\n")
