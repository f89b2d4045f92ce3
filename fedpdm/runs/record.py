"""The record of a run, the same for both engines: rows, checkpoints, models with their names, clients, and the summary."""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.compression.indices import entropy_bits
from fedpdm.compression.sparsify import coordinate_count
from fedpdm.config import Config, digest
from fedpdm.data.directions import Directions
from fedpdm.data.names import in_own_units
from fedpdm.data.schema import Schema, to_toml
from fedpdm.engines.simulation.measures import TestSet, figure_name, paper_bits
from fedpdm.errors import ConfigError
from fedpdm.privacy.first_release import Map
from fedpdm.problem import Loss
from fedpdm.rounds import Setup
from fedpdm.runs.evaluation import auc_of, figures_of
from fedpdm.runs.folder import INTERVALS, STANDARD, STEADINESS, RunFolder
from fedpdm.runs.intervals import Found
from fedpdm.runs.thin import UNITS, Thinner

__all__ = ["NO_GUARANTEE", "Engine", "ModelNames", "RunRecord"]

Models = dict[str, np.ndarray]  # "model" and "averaged_model"
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

    @property
    def original_test(self) -> TestSet | None:
        """The test examples before a private basis; without one, those of `test`."""
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
        if names.schema and config.data.features != "raw":
            names = names._replace(feature_names=in_own_units(names.feature_names, names.schema))
        self.config, self.folder, self.names, self._digest = config, folder, names, digest(config)
        self._check_sparsity()
        if names.schema:
            folder.keep_schema(to_toml(names.schema, SCHEMA_COMMENT))

    def _check_sparsity(self) -> None:
        """Refuse, before any training, a number of weights that the model does not have, and columns that it mixes."""
        keep = self.config.problem.sparsity
        if keep is None and not self.config.metrics.path:
            return
        names = self.names
        thinner = Thinner(self.config, names.feature_names, len(names.class_names), names.schema, names.columns_known)
        if isinstance(keep, float):
            thinner.count(keep)

    def require_linear(self, loss: Loss) -> None:
        """Refuse, before any training, to remove weights of a model that is not one of this package's linear ones."""
        wanted = self.config.problem.sparsity is not None or self.config.metrics.path
        if wanted and (loss.slopes is None or loss.initial is not None or loss.name != self.config.problem.loss):
            raise ConfigError(
                f"problem.sparsity and metrics.path are for linear models with problem.loss, which {loss.name!r} is not: "
                "leave both out."
            )

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
        standard: Map | None = None,
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
        standard : Standard or Directions, optional
            What the engine's features were standardised by, or projected onto; saved models are for the features before it.
        steadiness : dict of ndarray, optional
            How far every coefficient can be trusted (`Simulation.steadiness`).
        validation : tuple of ndarray, optional
            Features and labels of the rows on which a threshold is chosen.
        intervals : Found, optional
            Intervals of the coefficients of the saved model.
        """
        models, test = {"model": engine.model, "averaged_model": engine.averaged_model}, engine.test
        if isinstance(standard, Directions):  # from here on the features are those before the basis
            models, test = {name: standard.fold(model) for name, model in models.items()}, engine.original_test
        models, thinned = self._thinned(engine, models, test, standard, steadiness or {})
        figures = self._metrics(engine, models, test, validation)
        summary = self._summary(engine, models, test, seconds, compile_seconds) | figures | thinned | more
        about = {
            "data": self.config.data.name if self.names.columns_known else None,
            "loss": self.config.problem.loss,
            "class_names": self.names.class_names,
            "feature_names": self.names.feature_names,
            "intervals": intervals.about if intervals else None,
            "thresholds": [found.get("threshold") if found else self._given_threshold() for found in figures.values()],
        }
        self.folder.keep_clients(clients)
        if isinstance(standard, Directions):
            models |= {STANDARD + "moment": standard.moment.astype(np.float32)}
        elif standard is not None:
            models = {name: standard.fold(model) for name, model in models.items()}
            models |= {STANDARD + "centre": standard.centre, STANDARD + "scale": standard.scale}
        models |= {INTERVALS + key: values for key, values in (intervals.arrays if intervals else {}).items()}
        models |= {STEADINESS + key: values for key, values in (steadiness or {}).items()}
        self.folder.finish(models, about, summary)
        return summary

    def _given_threshold(self) -> float | None:
        """The threshold of the settings, where there were no test rows to use it on."""
        given = self.config.metrics.threshold
        return given if isinstance(given, float) else None

    def _thinned(
        self, engine: Engine, models: Models, test: TestSet | None, standard: Map | None, steadiness: Models
    ) -> tuple[Models, dict[str, Any]]:
        """Return the models with the weights that the settings leave, and what the summary says of fewer weights."""
        keep, problem = self.config.problem.sparsity, engine.setup.problem
        if keep is None and not self.config.metrics.path:
            return models, {}
        name, names = figure_name(problem), self.names
        thinner = Thinner(self.config, names.feature_names, len(names.class_names), names.schema, names.columns_known, standard)

        def measure(model: np.ndarray) -> dict[str, Any]:
            if test is None:
                return {name: None}
            return {name: round(test.measure(problem, model), 7), "auc": auc_of(problem, model, test[:2])}

        released = models["averaged_model" if self.config.metrics.released == "averaged" else "model"]
        count = None if keep is None else thinner.certain(steadiness["noise"]) if keep == "noise" else thinner.count(keep)
        said: dict[str, Any] = {"path_unit": UNITS[thinner.unit], "path": thinner.points(released, measure, count)}
        if count is None:
            return models, said
        return {key: thinner.thin(model, count) for key, model in models.items()}, said | {"kept": count}

    def _metrics(
        self, engine: Engine, kept: Models, test: TestSet | None, validation: tuple[np.ndarray, np.ndarray] | None
    ) -> dict[str, Any]:
        """Return all figures on the test rows, of the last and of the averaged model; None without test rows or a link."""
        problem = engine.setup.problem
        models = {"metrics": kept["model"], "metrics_averaged": kept["averaged_model"]}
        if test is None or problem.loss.link is None:
            return dict.fromkeys(models)
        how = (self.config.metrics.threshold, validation, test.units)
        return {key: figures_of(problem, model, test[:2], self.names, *how) for key, model in models.items()}

    def _summary(
        self, engine: Engine, kept: Models, test: TestSet | None, seconds: float, compile_seconds: float
    ) -> dict[str, Any]:
        """Return the run in a few numbers (see docs/run-folder.md)."""
        last = {key: value for row in self.folder.rows() for key, value in row.items()}
        problem = engine.setup.problem
        name = figure_name(problem)
        models = {name: kept["model"], f"{name}_averaged": kept["averaged_model"]}
        nonzero = last["nonzero_fraction"]
        if self.config.problem.sparsity is not None:
            nonzero = round(float(np.mean(kept["model"] != 0)), 7)
        return {
            **dict.fromkeys(("test_accuracy", "test_accuracy_averaged")),
            **{key: round(test.measure(problem, model), 7) if test else None for key, model in models.items()},
            "objective": last.get("objective"),
            "nonzero_fraction": nonzero,
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
            "remark": _remark(self.config, nonzero, len(engine.taken_part())),
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
