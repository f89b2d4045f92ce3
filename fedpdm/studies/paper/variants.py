"""Runs that no setting describes, for the properties P1 and P4 and for Theorem 3; kept like the cells of a sweep.

plain mean      the server divides by the number of participants, not of the senders              (P1)
ratios of 1     Algorithm 2 as printed, selections included, with both ratios 1                   (P4)
stationarity    the paper's measure P along a run without noise                                   (Theorem 3)
"""

import itertools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.algorithms import Algorithm, Broadcast, Reports
from fedpdm.compression.sparsify import coordinate_count, top_k_mask
from fedpdm.config import Config, DataSection, digest, validate
from fedpdm.data import Federation
from fedpdm.data.prepare import build_federation
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.errors import DivergedError
from fedpdm.problem.penalties import Penalty
from fedpdm.runs.cluster import each, last_few
from fedpdm.studies.compare import POINTS
from fedpdm.studies.paper.figures import Key

__all__ = ["Variant", "VARIANTS", "kept_seeds", "variant_configs", "run_variant", "plain_mean", "with_ratios_of_one"]


# A compiler rounds a mean over masks and one over flags differently in the last bit; more rounds would only add such bits up
EXACT_ROUNDS = 10


class Variant(NamedTuple):
    """A variant of a cell that checks a property: plain mean (P1), ratios of 1 (P4) or stationarity (Theorem 3)."""

    key: Key  # what its results are filed under
    base: Key  # the cell whose settings it takes
    quick: bool  # whether --quick runs it too

    @property
    def kind(self) -> str:
        return self.key[1]


VARIANTS = (
    Variant(("P1a", "plain mean", None), ("fig2a", "top-k", 0.1), True),
    Variant(("P1b", "plain mean", None), ("fig2b", "top-k", 0.1), False),
    Variant(("P4a", "ratios of 1", None), ("fig2a", "top-k", 1.0), True),
    Variant(("P4b", "ratios of 1", None), ("fig2b", "top-k", 1.0), False),
    Variant(("T3a", "stationarity", None), ("fig4a", "without DP", None), True),
    Variant(("T3b", "stationarity", None), ("fig4b", "without DP", None), False),
)


def variant_configs(cells: Mapping[Key, Config], quick: bool) -> dict[Variant, Config]:
    """Choose the variants whose cells are run.

    Parameters
    ----------
    cells : mapping of Key to Config
        The cells that are run.
    quick : bool
        Only the variants that the quick study has.

    Returns
    -------
    dict of Variant to Config
        The settings by variant.
    """
    result = {v: cells[v.base] for v in VARIANTS if v.base in cells and (v.quick or not quick)}
    for variant, config in result.items():
        if variant.kind == "ratios of 1":
            rounds = config.rounds.model_copy(update={"total": min(config.rounds.total, EXACT_ROUNDS)})
            result[variant] = config.model_copy(update={"rounds": rounds})
        if variant.kind == "stationarity":
            metrics = config.metrics.model_copy(update={"diagnose_every": max(1, config.rounds.total // POINTS)})
            result[variant] = config.model_copy(update={"metrics": metrics})
    return result


def plain_mean(algorithm: Algorithm) -> Algorithm:
    """Change the server of an algorithm: coordinates that were not sent count as zero.

    Parameters
    ----------
    algorithm : Algorithm
        The algorithm.

    Returns
    -------
    Algorithm
        The changed one.
    """

    def server_update(state: Any, reports: Reports, penalty: Penalty) -> Any:
        return algorithm.server_update(state, reports._replace(sent=None), penalty)

    return algorithm._replace(server_update=server_update)


def with_ratios_of_one(algorithm: Algorithm) -> Algorithm:
    """Make Algorithm 2 with both ratios 1: top-k of all d coordinates both ways, and the element-wise mean.

    Parameters
    ----------
    algorithm : Algorithm
        The algorithm.

    Returns
    -------
    Algorithm
        The changed one.
    """

    def selected(leaf: Array) -> Array:
        return top_k_mask(leaf, coordinate_count(1.0, leaf.size))

    def broadcast(state: Any) -> Broadcast:
        return jax.tree.map(lambda leaf: jnp.where(selected(leaf), leaf, 0.0), algorithm.broadcast(state))

    def server_update(state: Any, reports: Reports, penalty: Penalty) -> Any:
        sent = jax.tree.map(jax.vmap(selected), reports.messages)
        messages = jax.tree.map(lambda leaf, mask: jnp.where(mask, leaf, 0.0), reports.messages, sent)
        return algorithm.server_update(state, reports._replace(messages=messages, sent=sent), penalty)

    return algorithm._replace(broadcast=broadcast, server_update=server_update)


def run_variant(
    variant: Variant, config: Config, seeds: int, store: Path, on_result: Callable[[], None] | None = None
) -> list[dict[str, Any]]:
    """Run a variant for all seeds. Finished ones are read from the store and not run again.

    Parameters
    ----------
    variant : Variant
        The variant.
    config : Config
        Its settings.
    seeds : int
        Number of seeds, from 0.
    store : Path
        File that keeps finished runs.
    on_result : callable, optional
        Called after every run.

    Returns
    -------
    list of dict
        One result per seed.
    """
    known = _read(store)
    names = {seed: _name(variant, config, seed) for seed in range(seeds)}
    missing = [seed for seed in names if names[seed] not in known]
    say = on_result or (lambda: None)
    for _ in range(seeds - len(missing)):
        say()
    for (_, _, seed), result in each(_run, [(variant.kind, config, seed) for seed in missing]):
        known[names[seed]] = result
        store.parent.mkdir(parents=True, exist_ok=True)
        with store.open("a") as file:
            file.write(json.dumps({"variant": names[seed], **result}) + "\n")
        say()
    return [known[name] for name in names.values()]


def _run(given: tuple[str, Config, int]) -> dict[str, Any]:
    kind, config, seed = given
    began = time.perf_counter()
    run = _runner(f"{kind} {digest(config)}", kind, config)
    try:
        return run(seed) | {"seconds": round(time.perf_counter() - began, 3)}
    except DivergedError as error:
        return {"diverged": str(error)}


@last_few(1)
def _runner(kind: str, config: Config) -> Callable[[int], dict[str, Any]]:
    data = config.data.model_dump_json()
    return RUNNERS[kind](config, _federation(data, data))


def kept_seeds(variant: Variant, config: Config, store: Path) -> int:
    """Count the seeds of a variant, from 0 without a gap, that the store keeps.

    Parameters
    ----------
    variant, config, store
        As for `run_variant`.

    Returns
    -------
    int
        The number of seeds.
    """
    known = _read(store)
    return next(seed for seed in itertools.count() if _name(variant, config, seed) not in known)


def _name(variant: Variant, config: Config, seed: int) -> str:
    return f"{variant.kind} {digest(config.model_copy(update={'seed': seed}))}"


def _run_plain_mean(config: Config, federation: Federation) -> Callable[[int], dict[str, Any]]:
    simulation = _changed(config, federation, plain_mean)

    def run(seed: int) -> dict[str, Any]:
        simulation.restart(seed)
        return {"last": list(simulation.run())[-1]["test_accuracy"]}

    return run


def _run_ratios_of_one(config: Config, federation: Federation) -> Callable[[int], dict[str, Any]]:
    pair = (build_simulation(config, federation), _changed(config, federation, with_ratios_of_one))

    def run(seed: int) -> dict[str, Any]:
        for simulation in pair:
            simulation.restart(seed)
            list(simulation.run())
        largest = np.abs(pair[0].model).max() or 1.0
        return {"difference": float(np.abs(pair[0].model - pair[1].model).max() / largest)}

    return run


def _run_stationarity(config: Config, federation: Federation) -> Callable[[int], dict[str, Any]]:
    simulation, every = build_simulation(config, federation), config.metrics.diagnose_every

    def run(seed: int) -> dict[str, Any]:
        simulation.restart(seed)
        rows = [row for row in simulation.run() if row["round"] % every == 0]
        return {"round": [row["round"] for row in rows], "stationarity": [row["stationarity"] for row in rows]}

    return run


RUNNERS: dict[str, Callable[[Config, Federation], Callable[[int], dict[str, Any]]]] = {
    "plain mean": _run_plain_mean,
    "ratios of 1": _run_ratios_of_one,
    "stationarity": _run_stationarity,
}


def _changed(config: Config, federation: Federation, change: Callable[[Algorithm], Algorithm]) -> Simulation:
    """A simulation of a changed algorithm. Its state is made anew at the restart before every run."""
    simulation = build_simulation(config, federation)
    simulation.setup = simulation.setup._replace(algorithm=change(simulation.setup.algorithm))
    return simulation


@last_few(1)
def _federation(data: str) -> Federation:
    section = DataSection.model_validate_json(data)
    return build_federation(
        validate({"data": section.model_dump(), "rounds": {"participants": min(30, section.clients)}}), progress=False
    )


def _read(store: Path) -> dict[str, dict[str, Any]]:
    results = {}
    for line in store.read_text().splitlines() if store.exists() else ():
        try:
            result = json.loads(line)
        except json.JSONDecodeError:  # a line that a killed run left unfinished
            continue
        results[result.pop("variant")] = result
    return results
