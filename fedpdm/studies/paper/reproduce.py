"""Run the paper's figures and judge its claims."""

import json
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedpdm.config import Config
from fedpdm.runs.folder import _git_commit
from fedpdm.runs.sweep import Result, run_sweep
from fedpdm.studies.drawing import require_drawing
from fedpdm.studies.paper.certified import run_certified
from fedpdm.studies.paper.claims import judge_all
from fedpdm.studies.paper.drawing import draw_figure, write_numbers
from fedpdm.studies.paper.effects import Table
from fedpdm.studies.paper.figures import Key, Scale, cells, chosen_figures, panels
from fedpdm.studies.paper.heterogeneity import run_heterogeneity
from fedpdm.studies.paper.remedies import remedy_lines
from fedpdm.studies.paper.variants import Variant, run_variant, variant_configs
from fedpdm.studies.progress import CellProgress

__all__ = ["Reproduction", "STUDIES", "reproduce"]

# Studies beyond the paper's figures: (folder, seeds, quick, show progress) -> verdicts
STUDIES: dict[str, Callable[[Path, int, bool, bool], list[dict[str, Any]]]] = {
    "certified": run_certified,
    "heterogeneity": run_heterogeneity,
}


class Reproduction(NamedTuple):
    """The result of a reproduction.

    Attributes
    ----------
    claims
        The judged claims, as in claims.json.
    left_out
        The ids of claims whose points were not run.
    seconds, training_seconds
        Of this call; and of the training of all cells without compiling, also of those that an earlier call ran.
    """

    claims: list[dict[str, Any]]
    left_out: list[str]
    cells: int
    seconds: float
    training_seconds: float


def reproduce(
    figure: str, folder: Path, seeds: int = 5, scale: Scale = Scale(), command: str = "", show_progress: bool = True
) -> Reproduction:
    """Run a figure of the paper, or all of them; write figures, numbers and claims.

    Finished cells are kept in cells.jsonl and variants.jsonl in the folder. After an interruption the same call continues.

    Parameters
    ----------
    figure : str
        "fig2" to "fig8", or "all".
    folder : Path
        Folder for the results; it is created.
    seeds : int
        Number of seeds, from 0.
    scale : Scale
        How much of the study to run.
    command : str
        The command that made this call, for the page.
    show_progress : bool
        Show progress on stderr.

    Returns
    -------
    Reproduction
        The claims with their verdicts, and the cost of the study.

    References
    ----------
    Yiwei Li, Chien-Wei Huang, Shuai Wang, Chong-Yung Chi, Tony Q. S. Quek: Privacy-preserving Federated Primal-Dual Learning
    for Non-convex and Non-smooth Problems with Model Sparsification.
    """
    require_drawing()
    figures = chosen_figures(figure)
    began = time.perf_counter()
    chosen = [panel for panel in panels() if panel.figure in figures]
    settings = {key: config for panel in chosen for key, config in cells(panel, scale).items()}
    variants = variant_configs(settings, scale.quick)
    folder.mkdir(parents=True, exist_ok=True)
    table = _run(settings, variants, seeds, folder, show_progress)
    for name in figures:
        own = [panel for panel in chosen if panel.figure == name]
        write_numbers(own, table, folder / f"{name}.csv")
        draw_figure(own, table, seeds, scale.quick, folder)
    claims, left_out = judge_all(table)
    training = sum(r.get("seconds", 0.0) for results in table.values() for r in results)
    result = Reproduction(claims, left_out, len(settings) * seeds, time.perf_counter() - began, training)
    (folder / "claims.json").write_text(json.dumps(claims, indent=2) + "\n")
    page = claims_page(result, command or f"fedpdm reproduce {shlex.quote(figure)}", seeds, scale)
    text = "\n".join([*page, *remedy_lines(chosen, table)]) + "\n"
    (folder / "claims.md").write_text(text, encoding="utf-8")
    return result


def _run(settings: dict[Key, Config], variants: dict[Variant, Config], seeds: int, folder: Path, show_progress: bool) -> Table:
    """The results of all cells and variants, one list over seeds each."""
    configs = [config.model_copy(update={"seed": seed}) for config in settings.values() for seed in range(seeds)]
    with CellProgress(len(configs) + seeds * len(variants), show_progress) as progress:

        def on_result(done: int, total: int, config: Config, result: Result) -> None:
            progress.step(f"{config.data.name} {config.algorithm.name} seed {config.seed}")

        results = run_sweep(configs, folder / "cells.jsonl", on_result)
        table = {key: results[i * seeds : (i + 1) * seeds] for i, key in enumerate(settings)}
        for variant, config in variants.items():

            def on_variant(name: str = f"{variant.key[0]}, {variant.kind}") -> None:
                progress.step(name)

            table[variant.key] = run_variant(variant, config, seeds, folder / "variants.jsonl", on_variant)
    return table


def claims_page(result: Reproduction, command: str, seeds: int, scale: Scale) -> list[str]:
    """claims.md: how the results came about, and the verdicts in a table."""
    counts = {v: sum(c["verdict"] == v for c in result.claims) for v in ("holds", "does not hold", "undecided")}
    lines = [
        "# The paper's claims",
        "",
        f"- Command: `{command}`",
        f"- Commit: {_git_commit() or 'unknown'}",
        f"- {result.cells} runs with {seeds} seed{'s' if seeds > 1 else ''}; this call took {result.seconds:.0f} s.",
        f"- Training alone, of all cells, also those that an earlier call ran: {result.training_seconds:.0f} s.",
        "- " + ", ".join(f"{count} {name}" for name, count in counts.items()) + ".",
        "- Effect: positive on the side that the paper claims; differences are paired over seeds, with a 95 % Student t",
        "  interval; all of it above zero: holds; all below: does not hold; else undecided. Nothing was tuned.",
        "- How the paper is read: docs/reading-the-paper.md, and under every figure.",
    ]
    if scale.quick:
        lines.append("- QUICK: a tenth of the rounds, some of the curves, no first round of all clients. It measures nothing.")
    lines += ["", "| id | claim | check | effect | 95 % interval | verdict |", "|---|---|---|---|---|---|"]
    lines += [_line(claim) for claim in result.claims]
    if result.left_out:
        lines += ["", f"Left out, as their figures or some of their points were not run: {', '.join(result.left_out)}."]
    return lines


def _line(claim: dict[str, Any]) -> str:
    limits: Sequence[float] | None = claim["interval"]
    interval = f"{limits[0]:g} to {limits[1]:g}" if limits else "one seed"
    check = claim["check"].replace("|", "\\|")
    return f"| {claim['id']} | {claim['claim']} | {check} | {claim['effect']:g} | {interval} | {claim['verdict']} |"
