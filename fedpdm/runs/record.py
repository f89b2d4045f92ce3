"""The record of a run, the same for both engines: rows, checkpoints, models with their names, clients, and the summary."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.compression.indices import entropy_bits
from fedpdm.compression.sparsify import coordinate_count
from fedpdm.config import Config, digest
from fedpdm.data.schema import Schema, to_toml
from fedpdm.data.survival import band_places
from fedpdm.engines.simulation.measures import TestSet, figure_name, paper_bits
from fedpdm.rounds import Setup
from fedpdm.runs.evaluation import evaluation, number_evaluation, time_evaluation
from fedpdm.runs.folder import INTERVALS, STEADINESS, RunFolder
from fedpdm.runs.intervals import Found

__all__ = ["NO_GUARANTEE", "Engine", "ModelNames", "RunRecord"]

NO_GUARANTEE = "No privacy mechanism was on: nothing is guaranteed about the examples."
SCHEMA_COMMENT = "The columns that the model of this run was trained on; `fedpdm predict` encodes new rows by it."


class Engine(Protocol):
    """The part of an engine that the record reads: of a `Simulation`, or of the `Coordinator` of a deployment."""

    setup: Setup
    round: int

    @property
    def model(self) -> np.ndarray:
        """The global model x0."""
        ...

    @property
    def averaged_model(self) -> np.ndarray:
        """The mean of x0 over the tail of the rounds."""
        ...

    @property
    def test(self) -> TestSet | None:
        """The test examples; None if the engine has none."""
        ...

    def traffic(self) -> dict[str, int]:
        """Bytes so far, as encoded: "uplink", "downlink", "index"."""
        ...

    def taken_part(self) -> np.ndarray:
        """Participations of every client so far."""
        ...


class ModelNames(NamedTuple):
    """The meaning of a model's rows and columns.

    Attributes
    ----------
    class_names, feature_names : tuple of str
        Row k and column j of the weights; features after the map of the settings.
    schema : Schema or None
        The columns of a table. None: those of the data set in the settings.
    columns_known : bool
        Whether schema or data set define how the rows of a table become features. If not, the model takes no table.
    """

    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    schema: Schema | None = None
    columns_known: bool = True


class RunRecord:
    """Stores the work of an engine in a run folder.

    Parameters
    ----------
    config : Config
        The settings, resolved (`fedpdm.setup.resolve`).
    folder : RunFolder
        Open, with a manifest.
    names : ModelNames
        The meaning of the model's rows and columns.
    """

    def __init__(self, config: Config, folder: RunFolder, names: ModelNames) -> None:
        self.config, self.folder, self.names, self._digest = config, folder, names, digest(config)
        if names.schema:
            folder.keep_schema(to_toml(names.schema, SCHEMA_COMMENT))

    def begin(self, state: Any) -> tuple[Any, int]:
        """Return the state and the number of rounds to continue from: those of the checkpoint, or `state` and 0."""
        return self.folder.load_checkpoint(state, self._digest) or (state, 0)

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Store measurements, one row per round."""
        self.folder.append(rows)

    def checkpoint(self, state: Any, done: int) -> None:
        """Store the state after `done` rounds."""
        self.folder.save_checkpoint(state, done, self._digest)

    def finish(
        self,
        engine: Engine,
        seconds: float,
        compile_seconds: float,
        clients: dict[str, Any],
        more: dict[str, Any],
        fold: Callable[[np.ndarray], np.ndarray] | None = None,
        steadiness: dict[str, np.ndarray] | None = None,
        validation: tuple[np.ndarray, np.ndarray] | None = None,
        intervals: Found | None = None,
    ) -> dict[str, Any]:
        """Write models, clients and summary; return the summary.

        Parameters
        ----------
        engine : Engine
            The engine at its end.
        seconds, compile_seconds : float
            Time for training, and for compiling, apart.
        clients : dict
            The content of clients.json.
        more : dict
            The guarantee and other entries of this engine; they replace the entries that every run has.
        fold : callable, optional
            Turns a model of the engine's features into one of the named features.
        steadiness : dict of ndarray, optional
            How far every coefficient can be trusted (`Simulation.steadiness`).
        validation : tuple of ndarray, optional
            Features and labels of the rows on which a threshold is chosen.
        intervals : Found, optional
            Intervals of the coefficients of the saved model.
        """
        figures = self._metrics(engine, validation)
        summary = self._summary(engine, seconds, compile_seconds) | figures | more
        about = {
            "data": self.config.data.name if self.names.columns_known else None,
            "loss": self.config.problem.loss,
            "class_names": self.names.class_names,
            "feature_names": self.names.feature_names,
            "intervals": intervals.about if intervals else None,
            "thresholds": [found.get("threshold") if found else self._given_threshold() for found in figures.values()],
        }
        self.folder.keep_clients(clients)
        models = {"model": engine.model, "averaged_model": engine.averaged_model}
        models = {name: fold(model) if fold else model for name, model in models.items()}
        models |= {INTERVALS + key: values for key, values in (intervals.arrays if intervals else {}).items()}
        models |= {STEADINESS + key: values for key, values in (steadiness or {}).items()}
        self.folder.finish(models, about, summary)
        return summary

    def _given_threshold(self) -> float | None:
        """The threshold of the settings, where there were no test rows to use it on."""
        given = self.config.metrics.threshold
        return given if isinstance(given, float) else None

    def _metrics(self, engine: Engine, validation: tuple[np.ndarray, np.ndarray] | None) -> dict[str, Any]:
        """Return all figures on the test rows, of the last and of the averaged model; None without test rows or a link."""
        problem, test = engine.setup.problem, engine.test
        models = {"metrics": engine.model, "metrics_averaged": engine.averaged_model}
        if test is None or problem.loss.link is None:
            return dict.fromkeys(models)
        target = self.names.schema.target if self.names.schema else None
        if problem.loss.target == "time":
            assert target is not None, "a time has a schema"
            places = band_places(self.names.schema.label, self.names.feature_names) if self.names.schema else []
            return {key: time_evaluation(problem, model, test[:2], target, places) for key, model in models.items()}
        if problem.loss.target == "number":
            return {key: number_evaluation(problem, model, test[:2], target) for key, model in models.items()}
        threshold, names = self.config.metrics.threshold, self.names.class_names
        how = (test[:2], names, threshold, validation, test.units)
        return {key: evaluation(problem, model, *how) for key, model in models.items()}

    def _summary(self, engine: Engine, seconds: float, compile_seconds: float) -> dict[str, Any]:
        """Return the run in a few numbers (see docs/run-folder.md)."""
        last = {key: value for row in self.folder.rows() for key, value in row.items()}
        problem, test = engine.setup.problem, engine.test
        name = figure_name(problem)
        models = {name: engine.model, f"{name}_averaged": engine.averaged_model}
        return {
            **dict.fromkeys(("test_accuracy", "test_accuracy_averaged")),
            **{key: round(test.measure(problem, model), 7) if test else None for key, model in models.items()},
            "objective": last.get("objective"),
            "nonzero_fraction": last["nonzero_fraction"],
            "stationarity": last.get("stationarity"),
            "rounds": engine.round,
            "converged": None,
            "seconds": round(seconds, 3),
            "compile_seconds": round(compile_seconds, 3),
            **_traffic(self.config, engine),
            "mechanism": self.config.privacy.mechanism,
            "epsilon": None,
            "delta": None,
            "relation": None,
            "guarantee": NO_GUARANTEE,
            "remark": _remark(self.config, last["nonzero_fraction"], len(engine.taken_part())),
        }


def _traffic(config: Config, engine: Engine) -> dict[str, Any]:
    """Return bytes as encoded, bits by the paper's formula 32 k T K, and the indices against log2 C(d, k)."""
    links, size, traffic = engine.setup.links, engine.model.size, engine.traffic()
    summary: dict[str, Any] = {"uplink_bytes": traffic["uplink"], "downlink_bytes": traffic["downlink"]}
    summary |= paper_bits(links, size, engine.round, config.rounds.participants)
    if traffic["index"]:
        vectors = len(jax.tree.leaves(engine.setup.algorithm.gain(jnp.float32(1.0))))
        least = entropy_bits(size, coordinate_count(links.uplink, size)) * vectors * int(engine.taken_part().sum())
        summary["index_bits_over_entropy"] = round(8 * traffic["index"] / least, 4)
    return summary


def _remark(config: Config, nonzero_fraction: float, clients: int) -> str | None:
    """Return a sentence about a result that the numbers alone would misrepresent."""
    if nonzero_fraction > 0:
        return None
    scale = clients if config.problem.penalty_scale == "sum" else 1
    advice = "lower problem.gamma"
    if scale == 1:
        advice += ', or set problem.penalty_scale="sum" if gamma is meant for the sum over clients'
    return (
        f"The model is zero: the penalty of strength {config.problem.gamma / scale:g} on the mean objective removed every "
        f"coordinate. It has learnt nothing and always predicts the same: {advice}."
    )
