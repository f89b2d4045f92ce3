"""Read the folders that a report is about: run folders, and folders that `fedpdm reproduce` made."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpdm.config import Config, validate
from fedpdm.data.schema import Schema, Target, read_schema
from fedpdm.errors import UserError
from fedpdm.problem.inference import Intervals
from fedpdm.report.spending import Spending, read_spending
from fedpdm.runs.folder import INTERVALS, STEADINESS, RunFolder, read_about, read_models

__all__ = ["Run", "Study", "read_folders"]

# The files with verdicts that `fedpdm reproduce` writes, and the rule of a verdict.
FIRST = (
    "An effect is FedPDM against the best of the others, positive where FedPDM is better. It holds unless all of its 95 % "
    "interval is below zero."
)
VERDICTS = {
    "claims": "An effect is positive on the side that the paper claims. All of its interval above zero: holds; all below: "
    "does not hold; around zero and within the margin: no difference; else undecided.",
    "certified": FIRST,
    "heterogeneity": FIRST,
}
MOST_RUNS = 8  # the number of colours that everybody can distinguish


class Run(NamedTuple):
    """A finished run.

    Attributes
    ----------
    clients
        The content of clients.json; empty if the folder has none.
    class_names, feature_names
        Names of the model's rows and columns.
    spending
        The ledger's entries; None if no ledger was kept.
    steadiness
        How often signs and selections of coefficients stayed the same; empty if they were not counted.
    schema
        The schema of your own table.
    intervals, interval_words
        Intervals of the coefficients of the model, None if the run kept none; and how they were computed.
    """

    name: str
    manifest: dict[str, Any]
    config: Config
    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    clients: dict[str, Any]
    model: np.ndarray
    class_names: list[str]
    feature_names: list[str]
    spending: Spending | None
    steadiness: dict[str, np.ndarray] = {}  # noqa: RUF012 - never changed
    schema: Schema | None = None
    intervals: Intervals | None = None
    interval_words: str = ""

    @property
    def target(self) -> Target | None:
        """The bounds of a label that is a number."""
        return self.schema.target if self.schema else None

    @property
    def deployed(self) -> bool:
        """Whether real clients took part."""
        return self.manifest.get("engine") == "flower"

    @property
    def counted(self) -> bool:
        """Whether the test figures are of one model, from the clients' noised sums over rows that they held out."""
        found = self.summary.get("metrics") or self.summary.get("metrics_averaged") or {}
        return self.deployed and "noise" in found

    @property
    def linear(self) -> bool:
        """Whether the model is a row of weights per class, as all are but custom models."""
        return self.model.shape == (len(self.class_names), len(self.feature_names))


class Study(NamedTuple):
    """A reproduction: its claims with their verdicts, the rule of a verdict, how it was made, and its figures."""

    name: str
    claims: list[dict[str, Any]]
    rule: str
    about: list[str]
    figures: list[Path]


def read_folders(paths: Sequence[Path]) -> tuple[list[Run], list[Study]]:
    """Read every folder.

    Parameters
    ----------
    paths : sequence of Path
        Run folders, and folders of `fedpdm reproduce`.

    Returns
    -------
    tuple
        The runs and the studies.

    Raises
    ------
    UserError
        If a folder is of another kind, or a run is not complete.
    """
    runs: list[Run] = []
    studies: list[Study] = []
    for path, name in zip(paths, _names(paths), strict=True):
        found = [kind for kind in VERDICTS if (path / f"{kind}.json").is_file()]
        studies += [_read_study(path, name, kind) for kind in found]
        if (path / "manifest.json").is_file():
            runs.append(_read_run(path, name))
        elif not found:
            raise UserError(
                f"{path} holds neither a run (manifest.json) nor a reproduction (claims.json): give the folder that "
                "`fedpdm run` or `fedpdm reproduce` printed at its end."
            )
    if len(runs) > MOST_RUNS:
        raise UserError(f"A report shows at most {MOST_RUNS} runs side by side, but these are {len(runs)}: give fewer.")
    return runs, studies


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the folders' own names, or the given paths if two names are the same."""
    short = [path.resolve().name for path in paths]
    return [str(path) if short.count(name) > 1 else name for path, name in zip(paths, short, strict=True)]


def _read_run(path: Path, name: str) -> Run:
    folder = RunFolder(path)
    summary = folder.summary()
    if summary is None:
        raise UserError(f"The run in {path} is not complete (no summary.json): finish it with `fedpdm run --resume {path}`.")
    manifest, rows = folder.manifest(), folder.rows()
    try:
        clients = json.loads(folder.clients_path.read_bytes()) if folder.clients_path.exists() else {}
        models, about = read_models(path), read_about(path)
    except Exception as error:
        raise UserError(f"The run in {path} cannot be read: {error}.") from None
    config = validate(manifest.get("config", {}))
    model = models["averaged_model" if config.metrics.released == "averaged" else "model"]
    spending = read_spending(path / "ledger.sqlite", str(manifest.get("config_digest")), [row["round"] for row in rows])
    classes = about.get("class_names") or [str(label) for label in range(model.shape[0])]
    features = about.get("feature_names") or [f"x{column}" for column in range(model.shape[-1])]
    steady = {key.removeprefix(STEADINESS): values for key, values in models.items() if key.startswith(STEADINESS)}
    schema = read_schema(folder.schema_path) if folder.schema_path.is_file() else None
    said = about.get("intervals") or {}
    kept = [models[INTERVALS + key] for key in ("estimate", "error") if INTERVALS + key in models]
    intervals = Intervals(kept[0], np.diag(kept[1] ** 2), said["freedom"]) if kept else None
    words = " ".join(said[key] for key in ("method", "missing", "reason") if said.get(key))
    parts = spending, steady, schema, intervals, words
    return Run(name, manifest, config, summary, rows, clients, model, classes, features, *parts)


def _read_study(path: Path, name: str, kind: str) -> Study:
    file, page = path / f"{kind}.json", path / f"{kind}.md"
    try:
        claims = json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON: {error}.") from None
    lines = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    about = [line.removeprefix("- ").replace("`", "") for line in lines if line.startswith(("- Command:", "- Commit:"))]
    if kind == "claims":
        return Study(name, claims, VERDICTS[kind], about, sorted(path.glob("fig*.png")))
    figures = [path / f"{kind}.png"] if (path / f"{kind}.png").is_file() else []
    return Study(f"{name}: {kind}", claims, VERDICTS[kind], about or [f"Command: fedpdm reproduce {kind}"], figures)
