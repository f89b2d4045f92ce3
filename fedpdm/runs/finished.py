"""A finished run in Python: models, curves, guarantee."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpdm.config import Config
from fedpdm.errors import UserError
from fedpdm.runs.folder import RunFolder, read_models

__all__ = ["FinishedRun", "read_run"]


class FinishedRun(NamedTuple):
    """The models and measurements of a run, from its folder.

    Attributes
    ----------
    folder : Path
        The run folder; `fedpdm report`, `predict`, `export` and `privacy spent` take it.
    config : Config
        The settings, with every number that depends on the data filled in.
    model, averaged_model : ndarray
        [classes, features]: the last model, and the mean over the tail of the rounds.
    rows : list of dict
        One row of measurements per round.
    summary : dict
        The run in a few numbers (docs/run-folder.md).
    """

    folder: Path
    config: Config
    model: np.ndarray
    averaged_model: np.ndarray
    rows: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def curves(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By quantity: the rounds at which it was measured, and its values."""
        names = dict.fromkeys(name for row in self.rows for name in row if name != "round")
        pairs = {name: [(row["round"], row[name]) for row in self.rows if name in row] for name in names}
        return {name: (np.array([t for t, _ in points]), np.array([v for _, v in points])) for name, points in pairs.items()}

    @property
    def guarantee(self) -> str:
        """The privacy guarantee for the examples, in a sentence."""
        return self.summary["guarantee"]


def read_run(path: Path) -> FinishedRun:
    """Read a finished run, of either engine.

    Parameters
    ----------
    path : Path
        The run folder.

    Returns
    -------
    FinishedRun
        The run.

    Raises
    ------
    UserError
        If the folder holds no run, or one that is not finished.
    """
    folder = RunFolder(path)
    if not folder.manifest_path.is_file():
        raise UserError(f"{path} holds no run (there is no manifest.json): give the folder that `fedpdm run` named.")
    summary = folder.summary()
    if summary is None:
        raise UserError(f"The run in {path} is not finished: continue it with `fedpdm run --resume {path}`.")
    models = read_models(path)
    return FinishedRun(path, folder.config(), models["model"], models["averaged_model"], folder.rows(), summary)
