"""`fedpdm run` from Python: train in a run folder, and write the report."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedpdm.config import Config
from fedpdm.data.federation import Federation
from fedpdm.engines.simulation.hosts import is_first
from fedpdm.problem.penalties import Penalty
from fedpdm.report import write_report
from fedpdm.runs.finished import FinishedRun
from fedpdm.runs.train import train as train_in_folder
from fedpdm.setup.build import LossFactory

__all__ = ["train"]


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
    report: bool = True,
) -> FinishedRun:
    """Train a federated model in a run folder: exactly `fedpdm run`.

    Parameters
    ----------
    config : Config or str
        The settings, or the name of a preset or of a TOML file.
    out : path, optional
        The run folder; it must not hold a run. Default: a new one below runs/.
    resume : path, optional
        Continue the run in this folder, instead of `config` and `out`. A finished run is returned unchanged.
    federation : Federation, optional
        The clients' examples. Default: those of the settings.
    loss, penalty : optional
        A custom loss (see `fedpdm.problem.custom_model`) or penalty instead of the one of the settings.
    data_dir : path, optional
        The folder of the files of known data sets.
    progress : bool
        Report on standard error what is read, and the progress of training.
    track : iterable of str
        "mlflow", "tensorboard": trackers that get the measurements too.
    report : bool
        Write report.html into the folder.

    Returns
    -------
    FinishedRun
        Model, averaged model, curves, guarantee, summary and folder.

    Examples
    --------
    >>> import tempfile
    >>> from fedpdm.config import load_config
    >>> settings = ["data.name=digits", "data.clients=5", "rounds.participants=5", "rounds.total=2"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(load_config("plain", settings), f"{folder}/run")
    >>> run.model.shape, run.curves["test_accuracy"][0].tolist()
    ((10, 65), [1, 2])
    """
    options: dict[str, Any] = {"federation": federation, "loss": loss, "penalty": penalty, "data_dir": data_dir}
    run = train_in_folder(config, out, resume=resume, progress=progress, track=track, **options)
    if report and is_first():
        write_report([run.folder])
    return run
