"""Add seeds to the claims that are still open until each has a verdict, the cap is reached, or the time is over.

The claim with the least expected time to its verdict goes first, always to its next look only. So a limit of time decides as
many claims as it can. The order does not change a verdict: each claim is judged at its own looks, on its own first seeds.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpdm.errors import ConfigError
from fedpdm.runs.folder import atomic_write
from fedpdm.studies.paper.claims import CLAIMS, PaperClaim, judge, points_of_claim
from fedpdm.studies.paper.effects import FirstSeeds, MissingCellError, Table
from fedpdm.studies.paper.figures import Key
from fedpdm.studies.progress import duration
from fedpdm.studies.sequential import MARGIN, Rule, forecast

__all__ = ["OutOfTimeError", "add_seeds", "expected_seconds", "fix_rule", "open_claims"]

COMPILING = 3.0  # seconds to build one point in a batch: 435 s for the 140 points of the study with five seeds
UNKNOWN = 10.0  # seconds of a run whose time was not kept; more than most need
SHOWN = 8  # names of open claims in a line of progress
RULE_FILE = "rule.json"


class OutOfTimeError(Exception):
    """The limit of time is reached. Finished runs are kept, so the next call continues."""


def fix_rule(folder: Path, rule: Rule) -> Rule:
    """Write the rule into the folder, or continue with that of an earlier call; a larger cap may be set later, once.

    Levels depend on the cap. Looks that were made keep theirs, and a later cap has an error of its own (`Rule.later`).

    Parameters
    ----------
    folder : Path
        Folder of the results.
    rule : Rule
        The looks and their levels.

    Returns
    -------
    Rule
        The rule to use.
    """
    path = folder / RULE_FILE
    if path.exists():
        known = json.loads(path.read_text())
        before = Rule(**{key: known[key] for key in Rule._fields if key in known})
        alike = (before.first, before.error, known["margin"]) == (rule.first, rule.error, MARGIN)
        if alike and rule.most == before.cap:
            rule = before
        elif alike and rule.most > before.most and before.later is None:
            rule = before._replace(later=rule.most)
        else:
            raise ConfigError(
                f"Expected --most-seeds {rule.most} to be {before.cap}, as in {path}: a cap can be raised once after results "
                "were seen, else the error rate is unknown. Use the old cap, or another folder with --out."
            )
    said = rule._asdict() | {"looks": list(rule.looks), "levels": [float(f"{x:.6g}") for x in rule.levels], "margin": MARGIN}
    atomic_write(path, (json.dumps(said, indent=2) + "\n").encode())
    return rule


def open_claims(table: Table, rule: Rule) -> dict[PaperClaim, set[Key]]:
    """Find the claims without a verdict.

    Parameters
    ----------
    table : Table
        Results of every point, one per seed.
    rule : Rule
        The looks and their levels.

    Returns
    -------
    dict of PaperClaim to set of Key
        The claims, each with the points that it is computed from.
    """
    found = {}
    for claim in CLAIMS:
        try:
            if judge(claim, table, rule)["verdict"] == "undecided":
                found[claim] = points_of_claim(claim, table)
        except MissingCellError:
            continue
    return found


def expected_seconds(claims: dict[PaperClaim, set[Key]], table: Table, rule: Rule) -> float:
    """Estimate the time until every open claim has a verdict or the cap is reached, if effects and spread stay as they are.

    Parameters
    ----------
    claims : dict of PaperClaim to set of Key
        The open claims with their points.
    table : Table
        Results of every point, one per seed.
    rule : Rule
        The looks and their levels.

    Returns
    -------
    float
        Seconds on an idle machine.
    """
    wanted: dict[Key, int] = {}
    for claim, keys in claims.items():
        seeds = forecast(claim.effect(FirstSeeds(table, _seeds(keys, table))), claim.margin, rule)
        wanted |= {key: max(seeds, wanted.get(key, 0)) for key in keys}
    total = 0.0
    for key, seeds in wanted.items():
        results = table[key]
        looks = sum(len(results) < look <= seeds for look in rule.looks)
        total += _run_seconds(results) * max(0, seeds - len(results)) + COMPILING * (looks > 0)
    return total


def add_seeds(
    table: Table,
    run: Callable[[Iterable[Key], int], Table],
    rule: Rule,
    show_progress: bool = True,
    deadline: float = math.inf,
) -> dict[Key, list]:
    """Bring the open claim with the least expected time to its next look, again and again.

    Parameters
    ----------
    table : Table
        Results with at least the seeds of the first look.
    run : callable
        From points and a number of seeds to their results; it keeps finished runs, and may raise OutOfTimeError.
    rule : Rule
        The looks and their levels.
    show_progress : bool
        Say on standard error what is open, and the expected time.
    deadline : float
        No claim is begun after this time of `time.monotonic`.

    Returns
    -------
    dict of Key to list
        The table with further seeds where they were needed.
    """
    found = {key: list(results) for key, results in table.items()}
    while time.monotonic() < deadline:
        claims = {claim: keys for claim, keys in open_claims(found, rule).items() if _seeds(keys, found) < rule.cap}
        if not claims:
            break
        times = {claim: expected_seconds({claim: keys}, found, rule) for claim, keys in claims.items()}
        claim = min(claims, key=lambda claim: (times[claim], claim.id))
        seeds = min(look for look in rule.looks if look > _seeds(claims[claim], found))
        keys = sorted((key for key in claims[claim] if len(found[key]) < seeds), key=str)
        if show_progress:
            print(_said(claim, claims, found, rule, seeds), file=sys.stderr, flush=True)
        try:
            found |= {key: list(results) for key, results in run(keys, seeds).items()}
        except OutOfTimeError:
            break
    return found


def _run_seconds(results: Sequence[Mapping[str, Any]]) -> float:
    """The mean time of a run; results of older versions may have none."""
    known = [r["seconds"] for r in results if "seconds" in r]
    return sum(known) / len(known) if known else UNKNOWN


def _seeds(keys: Iterable[Key], table: Table) -> int:
    """The seeds that all of these points have."""
    return min(len(table[key]) for key in keys)


def _said(claim: PaperClaim, claims: dict[PaperClaim, set[Key]], table: Table, rule: Rule, seeds: int) -> str:
    names = [other.id for other in claims]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (
        f"{len(names)} claims are open ({', '.join(names[:SHOWN])}{more}), about "
        f"{duration(expected_seconds(claims, table, rule))} in all by the present spread. {claim.id} gets {seeds} seeds."
    )
