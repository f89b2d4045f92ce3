"""Run the paper's figures and judge its claims."""

import itertools
import json
import math
import shlex
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fedpdm.config import Config, digest
from fedpdm.errors import UserError
from fedpdm.runs.folder import _git_commit, atomic_write
from fedpdm.runs.sweep import Result, run_sweep, stored_results
from fedpdm.studies.drawing import require_drawing
from fedpdm.studies.paper.certified import run_certified
from fedpdm.studies.paper.claims import judge_all
from fedpdm.studies.paper.drawing import draw_figure, write_numbers
from fedpdm.studies.paper.effects import FirstSeeds, Table
from fedpdm.studies.paper.figures import Key, Scale, cells, chosen_figures, chosen_panels
from fedpdm.studies.paper.heterogeneity import run_heterogeneity
from fedpdm.studies.paper.multiverse import run_readings
from fedpdm.studies.paper.page import Provenance, claims_page
from fedpdm.studies.paper.remedies import compare_remedies
from fedpdm.studies.paper.until_decided import OutOfTimeError, add_seeds, fix_rule
from fedpdm.studies.paper.variants import Variant, kept_seeds, run_variant, variant_configs
from fedpdm.studies.progress import CellProgress, duration
from fedpdm.studies.sequential import Rule

__all__ = ["Reproduction", "STUDIES", "reproduce"]

CELLS, VARIANT_CELLS = "cells.jsonl", "variants.jsonl"
CALLS = "calls.jsonl"  # the calls that ran something and came to their end: command, commit, runs, seconds
# Studies beyond the paper's figures: (folder, seeds, quick, show progress) -> verdicts
STUDIES: dict[str, Callable[[Path, int, bool, bool], list[dict[str, Any]]]] = {
    "certified": run_certified,
    "heterogeneity": run_heterogeneity,
    "readings": run_readings,
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
    figure: str,
    folder: Path,
    seeds: int = 5,
    scale: Scale = Scale(),
    command: str = "",
    show_progress: bool = True,
    rule: Rule | None = None,
    minutes: float = math.inf,
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
    rule : Rule, optional
        Add seeds to undecided claims at the looks of this rule. `seeds` is then that of its first look.
    minutes : float
        With a rule: add no seeds after this time. Claims that are open then stay undecided; the next call continues.

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
    command = command or f"fedpdm reproduce {shlex.quote(figure)}"
    figures = chosen_figures(figure)
    began = time.monotonic()
    chosen = chosen_panels(figures, scale)
    settings = {key: config for panel in chosen for key, config in cells(panel, scale).items()}
    variants = variant_configs(settings, scale.quick)
    folder.mkdir(parents=True, exist_ok=True)
    before, _ = _lines(folder), _calls(folder)  # a damaged file is named before anything runs
    if rule:
        rule = fix_rule(folder, rule)
    seeds = rule.first if rule else seeds
    table: Table = _run(settings, variants, seeds, folder, show_progress)
    if rule:

        def run(keys: Iterable[Key], count: int) -> Table:
            wanted = set(keys)
            own = {key: config for key, config in settings.items() if key in wanted}
            checks = {variant: config for variant, config in variants.items() if variant.key in wanted}
            return _run(own, checks, count, folder, show_progress, deadline)

        deadline = began + 60 * minutes
        table = add_seeds({**table, **_kept(settings, variants, rule, folder)}, run, rule, show_progress, deadline)
    for name in figures:
        own = [panel for panel in chosen if panel.figure == name]
        write_numbers(own, table, folder / f"{name}.csv")
        draw_figure(own, table, scale, folder)
    claims, left_out = judge_all(table, rule)
    training = sum(r.get("seconds", 0.0) for results in table.values() for r in results)
    runs = sum(len(table[key]) for key in settings)
    result = Reproduction(claims, left_out, runs, time.monotonic() - began, training)
    atomic_write(folder / "claims.json", (json.dumps(claims, indent=2) + "\n").encode())
    remedies = compare_remedies(chosen, FirstSeeds(table, seeds))
    if (ran := _lines(folder) - before) > 0:
        call = {"command": command, "commit": _git_commit(), "runs": ran, "seconds": round(result.seconds)}
        atomic_write(folder / CALLS, "".join(json.dumps(each) + "\n" for each in [*_calls(folder), call]).encode())
    how = Provenance(command, seeds, scale.quick, rule)
    lines = [*how.lines(), *_changed(scale), *_cost(result, folder)]
    text = "\n".join(claims_page(claims, left_out, remedies, figures, lines, _readings(folder), rule)) + "\n"
    atomic_write(folder / "claims.md", text.encode())
    return result


def _readings(folder: Path) -> list[dict[str, Any]]:
    """The answers of `fedpdm reproduce readings`, if it wrote into this folder."""
    path = folder / "readings.json"
    return json.loads(path.read_text()) if path.exists() else []


def _changed(scale: Scale) -> list[str]:
    lines = [f"- Only the panels of {scale.data}."] if scale.data else []
    return lines + ([f"- Changed in all runs: {', '.join(scale.settings)}."] if scale.settings else [])


def _lines(folder: Path) -> int:
    """Count the stored runs."""
    return sum((folder / name).read_bytes().count(b"\n") for name in (CELLS, VARIANT_CELLS) if (folder / name).exists())


def _calls(folder: Path) -> list[dict[str, Any]]:
    path = folder / CALLS
    try:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): remove it. Only the times of earlier calls are lost.") from None


def _cost(result: Reproduction, folder: Path) -> list[str]:
    lines = [f"- {result.cells} runs of points in figures. Training alone: {result.training_seconds:.0f} s."]
    if calls := _calls(folder):
        total = sum(call["seconds"] for call in calls)
        lines.append(f"- Calls that ran something: {len(calls)}, {duration(total)} in all.")
        for call in calls:
            known = call["commit"] or "unknown"
            lines.append(f"    - `{call['command']}`: {call['runs']} runs in {call['seconds']} s, commit {known}")
    return lines


def _kept(settings: dict[Key, Config], variants: dict[Variant, Config], rule: Rule, folder: Path) -> Table:
    """The results of earlier calls for the points that have more seeds than those of the first look."""
    known = stored_results(folder / CELLS)
    found: dict[Key, list] = {}
    for key, config in settings.items():
        digests = (digest(config.model_copy(update={"seed": seed})) for seed in range(rule.cap))
        found[key] = [known[name] for name in itertools.takewhile(known.__contains__, digests)]
    for variant, config in variants.items():
        seeds = min(rule.cap, kept_seeds(variant, config, folder / VARIANT_CELLS))
        found[variant.key] = run_variant(variant, config, seeds, folder / VARIANT_CELLS)
    return {key: results for key, results in found.items() if len(results) > rule.first}


def _run(
    settings: dict[Key, Config],
    variants: dict[Variant, Config],
    seeds: int,
    folder: Path,
    show_progress: bool,
    deadline: float = math.inf,
) -> Table:
    """The results of all cells and variants, one list over seeds each."""
    configs = [config.model_copy(update={"seed": seed}) for config in settings.values() for seed in range(seeds)]
    checks = [(config, variant.kind) for variant, config in variants.items() for _ in range(seeds)]
    with CellProgress(configs, show_progress, checks) as progress:

        def step(config: Config, name: str, kind: str = "") -> None:
            progress.step(config, name, kind)
            if time.monotonic() > deadline:
                raise OutOfTimeError(name)

        def on_result(done: int, total: int, config: Config, result: Result) -> None:
            step(config, f"{config.data.name} {config.algorithm.name} seed {config.seed}")

        results = run_sweep(configs, folder / CELLS, on_result)
        table = {key: results[i * seeds : (i + 1) * seeds] for i, key in enumerate(settings)}
        for variant, config in variants.items():

            def on_variant(config: Config = config, variant: Variant = variant) -> None:
                step(config, f"{variant.key[0]}, {variant.kind}", variant.kind)

            table[variant.key] = run_variant(variant, config, seeds, folder / VARIANT_CELLS, on_variant)
    return table
