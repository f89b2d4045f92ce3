"""Run the readings of the design, and write the answers: `fedpdm reproduce readings`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.config import Config
from fedpdm.runs.folder import atomic_write
from fedpdm.runs.sweep import Result, run_sweep
from fedpdm.studies.drawing import require_drawing, write_csv
from fedpdm.studies.paper.effects import BASELINES
from fedpdm.studies.paper.multiverse.analysis import (
    BEST,
    HEADLINES,
    Repeat,
    Specification,
    best_specification,
    chance_limit,
    changes,
    claims_held,
    gap,
    importance,
    share_held,
    tells_factors_apart,
)
from fedpdm.studies.paper.multiverse.cells import PANELS, reading_cells
from fedpdm.studies.paper.multiverse.design import read_design
from fedpdm.studies.paper.multiverse.drawing import draw_curve
from fedpdm.studies.paper.multiverse.factors import TESTED, Reading
from fedpdm.studies.paper.multiverse.page import readings_page
from fedpdm.studies.progress import CellProgress
from fedpdm.studies.statistics import t_interval

__all__ = ["repeat_of", "run_readings", "specifications_of", "write_readings"]

QUICK_READINGS = 3
QUICK = ("rounds.total=5", "rounds.all_first=false")
OTHER_SEEDS = range(1000, 1010)  # for the best reading, which was chosen by the first ones
STORE = "readings-cells.jsonl"
# Results of the seeds, by panel and curve
Cells = dict[tuple[str, str], list[Result]]


def run_readings(
    folder: Path, seeds: int, quick: bool = False, show_progress: bool = True, first: int | None = None
) -> list[dict[str, Any]]:
    """Run the readings of the design on both data sets; write readings.csv, .json, .md, .png and .svg.

    Finished cells are kept in readings-cells.jsonl, so the same call continues after an interruption.

    Parameters
    ----------
    folder : Path
        Folder for the results; it is created.
    seeds : int
        Number of seeds, from 0.
    quick : bool
        Three readings of five rounds: it shows that everything works.
    show_progress : bool
        Show progress on stderr.
    first : int, optional
        Only the first readings of the design, in its order, which is random (`fedpdm.studies.paper.multiverse.design`).

    Returns
    -------
    list of dict
        One entry per headline claim.
    """
    require_drawing()
    folder.mkdir(parents=True, exist_ok=True)
    design = read_design()[: QUICK_READINGS if quick else first]
    how = folder / STORE, QUICK if quick else (), show_progress
    results = _run(design, range(seeds), *how)
    found = [one for number, reading in enumerate(design) for one in specifications_of(number, reading, results[number])]
    best = best_specification(found)
    results += _run([design[best.number]], OTHER_SEEDS, *how)
    seconds = sum(result.get("seconds", 0.0) for cells in results for own in cells.values() for result in own)
    return write_readings(found, folder, seeds, quick, seconds, repeat_of(best, design[best.number], results[-1]))


def repeat_of(best: Specification, reading: Reading, cells: Cells) -> Repeat:
    """Judge a specification by other seeds.

    Parameters
    ----------
    best : Specification
        The specification.
    reading : Reading
        Its reading.
    cells : dict
        Results of the other seeds by panel and curve, at least two each.

    Returns
    -------
    Repeat
        Means over these seeds, and intervals of the gaps.
    """
    tested = best.levels["tested"]
    again = next(one for one in specifications_of(best.number, reading, cells) if one.levels["tested"] == tested)
    gaps = {}
    for panel in PANELS:
        values = {label: [r.get(TESTED[tested], 0.0) for r in own] for (at, label), own in cells.items() if at == panel.name}
        rival = max(BASELINES, key=lambda label: float(np.mean(values[label])))
        gaps[panel.name] = t_interval(np.subtract(values["FedPDM"], values[rival]).tolist())
    return Repeat(again, len(next(iter(cells.values()))), gaps)


def _run(
    design: Sequence[Reading], seeds: Sequence[int], store: Path, extra: Sequence[str], show_progress: bool
) -> list[Cells]:
    """Results of all readings. Readings with the same data and sizes run together: they share rows and compiled programs."""
    wanted = [(number, key, config) for number, row in enumerate(design) for key, config in reading_cells(row, extra).items()]
    wanted.sort(key=lambda one: _batch(one[2]))
    configs = [config.model_copy(update={"seed": seed}) for _, _, config in wanted for seed in seeds]
    with CellProgress(configs, show_progress) as progress:

        def on_result(done: int, total: int, config: Config, result: Result) -> None:
            progress.step(config, f"{config.data.name} {config.algorithm.name} seed {config.seed}")

        results = run_sweep(configs, store, on_result)
    found: list[Cells] = [{} for _ in design]
    for i, (number, key, _) in enumerate(wanted):
        found[number][key] = results[i * len(seeds) : (i + 1) * len(seeds)]
    return found


def _batch(config: Config) -> tuple[str, ...]:
    return (
        config.data.model_dump_json(),
        config.algorithm.name,
        config.local.model_dump_json(),
        config.rounds.model_dump_json(),
        config.problem.model_dump_json(),
    )


def specifications_of(number: int, reading: Reading, cells: Cells) -> list[Specification]:
    """Make the specifications of a reading: one for each model that can be tested.

    Parameters
    ----------
    number : int
        Of the reading in the design.
    reading : Reading
        A level of every factor.
    cells : dict
        Results of the seeds by panel and curve; a run that diverged counts as accuracy 0.

    Returns
    -------
    list of Specification
        The specifications.
    """
    moves = {panel.name: 0.0 for panel in PANELS}
    for (panel, _), results in cells.items():
        moves[panel] = max([moves[panel], *(float(np.ptp(r["accuracy"])) for r in results if r.get("accuracy"))])
    return [
        Specification(
            number,
            reading | {"tested": name},
            {at: float(np.mean([r.get(key, 0.0) for r in results])) for at, results in cells.items()},
            moves,
        )
        for name, key in TESTED.items()
    ]


def write_readings(
    found: Sequence[Specification],
    folder: Path,
    seeds: int,
    quick: bool,
    seconds: float = 0.0,
    repeat: Repeat | None = None,
) -> list[dict[str, Any]]:
    """Write the table, the shares, the specification curve and the page.

    Parameters
    ----------
    found : sequence of Specification
        All specifications.
    folder : Path
        Folder for the results.
    seeds : int
        Seeds of each cell.
    quick : bool
        The small version.
    seconds : float
        Of all cells' training.
    repeat : Repeat, optional
        The best specification with other seeds.

    Returns
    -------
    list of dict
        One entry per headline claim: its share, and the factor that decides most, if it explains more than chance does.
    """
    rows = []
    for one in found:
        row: dict[str, Any] = {"reading": one.number, **one.levels}
        row |= {f"{panel} {label}": round(value, 5) for (panel, label), value in one.accuracies.items()}
        rows.append(row | {f"{panel.name} gap": round(gap(one.accuracies, panel.name), 5) for panel in PANELS})
    write_csv(rows, folder / "readings.csv")
    entries = []
    for headline in HEADLINES:
        enough = tells_factors_apart(found)
        weights, limit = (importance(headline, found), chance_limit(headline, found)) if enough else ({}, 1.0)
        first = max(weights, key=lambda name: weights[name], default=None)
        entries.append(
            {
                "id": headline.id,
                "claim": headline.text,
                "check": "share of the readings in which it holds",
                "effect": round(share_held(headline, found), 4),
                "readings": len({one.number for one in found}),
                "decides": first if first and weights[first] > limit else None,
                "chance": round(limit, 4),
                "explained": {name: round(value, 4) for name, value in weights.items()},
            }
        )
    best = best_specification(found)
    held = {"id": BEST, "reading": best.number, "changes": changes(best), "claims": len(HEADLINES), "held": claims_held(best)}
    if repeat:
        held |= {"seeds_again": repeat.seeds, "held_again": claims_held(repeat.specification)}
    atomic_write(folder / "readings.json", (json.dumps([*entries, held], indent=2) + "\n").encode())
    draw_curve(found, folder / "readings")
    text = "\n".join(readings_page(found, entries, seeds, quick, seconds, repeat)) + "\n"
    atomic_write(folder / "readings.md", text.encode())
    return entries
