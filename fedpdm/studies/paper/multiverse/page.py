"""readings.md: in which share of the readings each headline claim holds, which factor decides, and the best reading."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedpdm.metrics.intervals import share
from fedpdm.runs.folder import _git_commit
from fedpdm.studies.paper.multiverse.analysis import (
    BEST_TITLE,
    ERROR,
    HEADLINES,
    Headline,
    Repeat,
    Specification,
    best_specification,
    changes,
    claims_held,
    gap,
    level_means,
    nearest_that_moves,
    share_held,
)
from fedpdm.studies.paper.multiverse.cells import PANELS
from fedpdm.studies.paper.multiverse.design import SIZE
from fedpdm.studies.paper.multiverse.factors import FACTORS, TESTED
from fedpdm.studies.sequential import MARGIN

__all__ = ["readings_page"]

TITLES = {factor.name: factor.title for factor in FACTORS} | {"tested": "which model is tested"}


def readings_page(
    found: Sequence[Specification],
    entries: Sequence[Mapping[str, Any]],
    seeds: int,
    quick: bool,
    seconds: float = 0.0,
    repeat: Repeat | None = None,
) -> list[str]:
    """Make the page of the readings.

    Parameters
    ----------
    found : sequence of Specification
        All specifications.
    entries : sequence of mappings
        One per headline claim, from `write_readings`.
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
    list of str
        The lines in Markdown.
    """
    readings = len({one.number for one in found})
    note = ["QUICK: three readings of five rounds. It measures nothing.", ""] if quick else []
    which = f"{readings}" if readings == SIZE else f"The first {readings} of {SIZE}"
    return [
        "# The claims under many readings of the paper",
        "",
        *note,
        f"{which} readings of the paper's silent places, each with the last model and with the tail average, were run on the",
        f"four panels of Figure 7, seeds per cell: {seeds}. `fedpdm/studies/paper/multiverse/design.csv` fixed",
        "them, and their order, which is random, before any was run. A claim holds in a reading if the mean over the seeds",
        "says so; a single reading is not a test.",
        "",
        f"- Command: `fedpdm reproduce readings --seeds {seeds}{'' if readings == SIZE else f' --first {readings}'}`",
        f"- Commit: {_git_commit() or 'unknown'}",
        f"- Training alone, of all cells: {seconds:.0f} s.",
        "",
        "![Specification curve](readings.png)",
        "",
        *_shares(found, entries),
        "",
        *_deciding(found, entries),
        "",
        *_best(found, repeat),
        "",
        *_moving(found),
        "",
        *_factors(),
    ]


def _shares(found: Sequence[Specification], entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## In which share of the readings each claim holds"
    yield ""
    yield "In brackets is the 95 % interval (Wilson) for all combinations of levels, of which these are a sample."
    yield ""
    yield f"| claim | all | {' | '.join(TESTED)} | decides most |"
    yield "|---|---|" + "---|" * (len(TESTED) + 1)
    for headline, entry in zip(HEADLINES, entries, strict=True):
        shares = " | ".join(_share(headline, [one for one in found if one.levels["tested"] == name]) for name in TESTED)
        yield f"| {headline.text} | {entry['effect']:.0%} | {shares} | {_decides(entry)} |"


def _decides(entry: Mapping[str, Any]) -> str:
    if not entry["explained"]:
        return "too few readings to tell"
    first, limit = entry["decides"], f"{entry['chance']:.0%}"
    return f"{TITLES[first]} ({entry['explained'][first]:.0%}; chance: {limit})" if first else f"none beyond chance ({limit})"


def _share(headline: Headline, found: Sequence[Specification]) -> str:
    value = share_held(headline, found)
    limits = share(value * len(found), len(found))
    return f"{value:.0%} ({limits.low:.0%} to {limits.high:.0%})"


def _deciding(found: Sequence[Specification], entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    first = [(headline, entry) for headline, entry in zip(HEADLINES, entries, strict=True) if headline.id.endswith("-first")]
    yield "## Which factor decides"
    yield ""
    known = all(entry["explained"] for entry in entries)
    if known:
        yield "Share of the variance of FedPDM's distance to the best baseline that each factor explains alone, and the mean"
        yield "distance of each level. The rest is interactions and seeds. A share in bold is beyond chance: where values are"
        yield f"shuffled between readings, some factor of {len(HEADLINES)} claims gets that far in {ERROR:.0%} of the cases."
        yield "The others may be chance: c0, G and the noise of the baselines have small shares without DP too, where they"
        yield "change nothing."
    else:
        yield "Mean of FedPDM's distance to the best baseline at each level. There are too few readings to tell factors apart:"
        yield "the other factors are not equally often at each level, so a difference here may be due to them."
    yield ""
    yield f"| factor | {' | '.join(headline.text.partition(':')[0] for headline, _ in first)} |"
    yield "|---|" + "---|" * len(first)
    for name in found[0].levels:
        cells = []
        for headline, entry in first:
            means = ", ".join(f"{level} {mean:+.3f}" for level, mean in level_means(headline, found, name).items())
            cells.append(f"{_explained(entry, name)} ({means})" if known else means)
        yield f"| {TITLES[name]} | {' | '.join(cells)} |"


def _explained(entry: Mapping[str, Any], name: str) -> str:
    value = entry["explained"][name]
    return f"**{value:.0%}**" if value > entry["chance"] else f"{value:.0%}"


def _best(found: Sequence[Specification], repeat: Repeat | None) -> Iterator[str]:
    best = best_specification(found)
    held = claims_held(best)
    gaps = ", ".join(f"{panel.title} {gap(best.accuracies, panel.name):+.4f}" for panel in PANELS)
    yield f"## {BEST_TITLE}"
    yield ""
    yield f"Reading {best.number}, tested: {best.levels['tested']}. In it {held} of {len(HEADLINES)} claims hold. It differs"
    yield f"from ours in {_said(best)}. FedPDM minus the best baseline: {gaps}."
    yield "It is the best of many, so its own figures are too good by chance."
    if repeat:
        yield ""
        again = claims_held(repeat.specification)
        yield f"With {repeat.seeds} other seeds {again} of {len(HEADLINES)} claims hold in it, by the means over the seeds."
        yield "FedPDM minus the best baseline, and its 95 % interval:"
        yield ""
        for panel in PANELS:
            found_again = repeat.gaps[panel.name]
            yield f"- {panel.title}: {found_again.mean:+.4f} ({found_again.low:+.4f} to {found_again.high:+.4f})"


def _moving(found: Sequence[Specification]) -> Iterator[str]:
    yield "## Readings in which something is learnt"
    yield ""
    for panel in PANELS:
        numbers = {one.number for one in found if one.moves[panel.name] > MARGIN}
        nearest = nearest_that_moves(found, panel.name)
        line = f"- {panel.title}: a curve moves by more than {MARGIN:g} in {len(numbers)} of {len({o.number for o in found})}."
        yield line + (f" Nearest to ours: reading {nearest.number}, with {_said(nearest)}." if nearest else "")


def _said(one: Specification) -> str:
    return ", ".join(f"{TITLES[name]} {level}" for name, level in changes(one).items()) or "nothing"


def _factors() -> Iterator[str]:
    yield "## The factors"
    yield ""
    yield "| factor | our reading | other readings |"
    yield "|---|---|---|"
    for factor in FACTORS:
        first, *others = (level.name for level in factor.levels)
        yield f"| {factor.title} | {first} | {'; '.join(others)} |"
    first, *others = TESTED
    yield f"| {TITLES['tested']} | {first} | {'; '.join(others)} |"
