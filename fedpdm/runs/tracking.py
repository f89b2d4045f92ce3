"""Write a run's measurements to MLflow or TensorBoard. Both are optional packages."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from fedpdm.choices.registry import cause
from fedpdm.config import Config
from fedpdm.config.keys import flat
from fedpdm.errors import ConfigError, require_extra
from fedpdm.runs.folder import RunFolder

__all__ = ["TRACKERS", "Tracker", "check_trackers", "open_trackers"]

TRACKERS = {"mlflow": "mlflow", "tensorboard": "tensorboardX"}  # name, and the package that it needs
EXPERIMENT = "fedpdm"


class Tracker(Protocol):
    """Takes measurements and results; must not change the run."""

    def rows(self, rows: list[dict[str, Any]]) -> None: ...

    def finish(self, summary: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run folder's `tensorboard`: `tensorboard --logdir runs` shows all runs."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]

        self._writer = SummaryWriter(logdir=str(folder.path / "tensorboard"))

    def rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            for name, value in _numbers(row):
                self._writer.add_scalar(name, value, row["round"])
        self._writer.flush()

    def finish(self, summary: dict[str, Any]) -> None:
        self._writer.add_text("guarantee", str(summary.get("guarantee", "")))

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run of the experiment "fedpdm" in MLflow's own store: MLFLOW_TRACKING_URI, else mlflow.db in this folder."""

    def __init__(self, folder: RunFolder, config: Config) -> None:
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # no messages about its tables
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
        from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]

        try:
            self._client = MlflowClient()
            found = self._client.get_experiment_by_name(EXPERIMENT)
            experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
            self._run = self._client.create_run(experiment, run_name=folder.path.name).info.run_id
            for key, value in flat(config.model_dump(mode="json")).items():
                self._client.log_param(self._run, key, value)
        except (MlflowException, OSError) as error:
            line = " ".join(str(error).split())
            raise ConfigError(f"--track mlflow cannot write to its store: {line[:300]}. Check MLFLOW_TRACKING_URI.") from None
        self._folder, self._status = folder, "FAILED"

    def rows(self, rows: list[dict[str, Any]]) -> None:
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(time.time() * 1000)
        self._client.log_batch(
            self._run, metrics=[Metric(name, value, now, row["round"]) for row in rows for name, value in _numbers(row)]
        )

    def finish(self, summary: dict[str, Any]) -> None:
        for name, value in _numbers(summary):
            self._client.log_metric(self._run, f"final.{name}", value)
        self._client.set_tag(self._run, "guarantee", str(summary.get("guarantee", "")))
        self._client.set_tag(self._run, "run_folder", str(self._folder.path))
        self._status = "FINISHED"

    def close(self) -> None:
        self._client.set_terminated(self._run, self._status)


_MAKE = {"mlflow": MLflow, "tensorboard": TensorBoard}


def check_trackers(names: Iterable[str]) -> list[str]:
    """Check the names of trackers.

    Parameters
    ----------
    names : iterable of str
        Keys of `TRACKERS`.

    Returns
    -------
    list of str
        The names, each once.

    Raises
    ------
    ConfigError
        For an unknown name.
    UserError
        If the package of a tracker is not installed.
    """
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in TRACKERS:
            raise ConfigError(f"Unknown --track {name!r}: choose {' or '.join(TRACKERS)}.")
        require_extra(TRACKERS[name], name, f"--track {name}")
    return chosen


@contextmanager
def open_trackers(names: Iterable[str], folder: RunFolder, config: Config) -> "Iterator[Trackers]":
    """Open the trackers of a run, and close them at the end, also after an error.

    Parameters
    ----------
    names : iterable of str
        Keys of `TRACKERS`.
    folder, config
        The run folder and the settings.

    Returns
    -------
    context manager
        The `Trackers`.
    """
    with ExitStack() as stack:
        opened: list[Tracker] = []
        for name in check_trackers(names):
            opened.append(_MAKE[name](folder, config))
        tracking = Trackers(opened, folder)
        stack.callback(tracking.close)
        yield tracking


class Trackers:
    """Several trackers as one. For a resumed run they get all rows, also those before the checkpoint.

    One that fails is left out from then on, with a line: the run folder has all measurements, and a run must not end for it.
    """

    def __init__(self, trackers: list[Tracker], folder: RunFolder) -> None:
        self._trackers, self._folder, self._begun = trackers, folder, False

    def rows(self, rows: list[dict[str, Any]]) -> None:
        """Pass measurements on; the run folder has them already."""
        if self._trackers and not self._begun:
            self._begun, rows = True, self._folder.rows()
        self._each(lambda tracker: tracker.rows(rows))

    def finish(self, summary: dict[str, Any]) -> None:
        """Pass the results on."""
        self._each(lambda tracker: tracker.finish(summary))

    def close(self) -> None:
        """Close them all."""
        self._each(lambda tracker: tracker.close())

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                act(tracker)
            except Exception as error:  # a server that is gone, a full disk
                self._trackers.remove(tracker)
                name = type(tracker).__name__
                words = f"{name} takes no more measurements: {cause(error)}. The run goes on; its folder has all of them."
                print(f"fedpdm: {words}", file=sys.stderr)


def _numbers(values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if name != "round" and isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)
