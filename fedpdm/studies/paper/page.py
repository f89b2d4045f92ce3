"""claims.md: the answer in ten lines, how it came about, and the claims of every figure. All of it is made from verdicts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fedpdm.runs.folder import _git_commit
from fedpdm.studies.paper.claims import LAST_QUARTER
from fedpdm.studies.paper.effects import BASELINES
from fedpdm.studies.paper.figures import panels
from fedpdm.studies.paper.remedies import Remedy, remedy_lines
from fedpdm.studies.sequential import MARGIN, Rule

__all__ = ["Provenance", "answer_lines", "claims_page"]

VERDICTS = {
    "holds": "hold",
    "does not hold": "do not hold",
    "no difference": "show no difference",
    "undecided": "are undecided",
}
PROPERTIES = "properties"
TITLES = {
    "fig2": "Figure 2: a smaller uplink",
    "fig3": "Figure 3: a smaller downlink",
    "fig4": "Figure 4: the privacy budget",
    "fig5": "Figure 5: the non-convex term",
    "fig6": "Figure 6: the L1 penalty",
    "fig7": "Figure 7: FedPDM against the baselines",
    "fig8": "Figure 8: the same with sparse messages",
    PROPERTIES: "Properties and Theorem 3",
}
Claims = Sequence[dict[str, Any]]


class Provenance(NamedTuple):
    """How results came about.

    Attributes
    ----------
    command, seeds, quick
        The command; the seeds of every point, or of the first look; whether it was the small version.
    rule
        The sequential test, if there was one.
    """

    command: str
    seeds: int
    quick: bool
    rule: Rule | None

    def lines(self) -> list[str]:
        """Say it as a list in Markdown."""
        lines = [f"- Command: `{self.command}`", f"- Commit: {_git_commit() or 'unknown'}"]
        if self.rule:
            looks = ", ".join(map(str, self.rule.looks))
            lines += [
                f"- Looks at {looks} seeds, for the claims that are still undecided. With a probability of at least",
                f"  {1 - self.rule.error:.0%} all intervals of a claim contain its effect; else its verdict may be wrong.",
                "- Second check: accuracy claims that the last model leaves undecided are judged by the mean accuracy over the",
                f"  last quarter of the rounds, with {self.rule.error:.0%} of error of its own:",
                "  [why and when it was added](../../reading-the-paper.md#seeds-until-a-claim-is-decided).",
            ]
        else:
            lines.append(f"- {self.seeds} seed{'s' if self.seeds > 1 else ''}; intervals are 95 % Student t intervals.")
        lines += [
            "- Effect: positive on the side that the paper claims; differences are paired over seeds. All of the interval is",
            "  above zero: holds; below: does not hold; around zero and within the margin: no difference; else undecided.",
            f"- Margin: {MARGIN:g} in accuracy; for a trend from the first setting to the last. Nothing was tuned.",
        ]
        if self.quick:
            lines.append(
                "- QUICK: a tenth of the rounds, some of the curves, no first round of all clients. It measures nothing."
            )
        return lines


def claims_page(
    claims: Claims,
    left_out: Sequence[str],
    remedies: Sequence[Remedy],
    figures: Sequence[str],
    provenance: Sequence[str],
    readings: Claims = (),
) -> list[str]:
    """Make the page of the claims.

    Parameters
    ----------
    claims : sequence of dict
        The entries of claims.json.
    left_out : sequence of str
        Ids of claims that were not judged.
    remedies : sequence of Remedy
        FedPDM with other choices, against the best baseline.
    figures : sequence of str
        The figures that were drawn.
    provenance : sequence of str
        Lines that say how the results came about.
    readings : sequence of dict
        The entries of readings.json, if the readings were run.

    Returns
    -------
    list of str
        The lines in Markdown.
    """
    answer = answer_lines(claims, remedies, readings)
    lines = ["# The paper's claims", "", *answer, "", "## How it was found", "", *provenance]
    for group in TITLES:
        own = [claim for claim in claims if _group(claim) == group]
        if own or group in figures:
            lines += ["", f"## {TITLES[group]}", "", *_section(group, own, group in figures)]
    if left_out:
        lines += ["", f"Left out, as their figures or some of their points were not run: {', '.join(left_out)}."]
    return [*lines, *remedy_lines(remedies)]


def answer_lines(claims: Claims, remedies: Sequence[Remedy], readings: Claims = ()) -> list[str]:
    """Say in at most ten lines what is true, under which reading, and what to do instead.

    Parameters
    ----------
    claims : sequence of dict
        The entries of claims.json.
    remedies : sequence of Remedy
        FedPDM with other choices, against the best baseline.
    readings : sequence of dict
        The entries of readings.json, if the readings were run.

    Returns
    -------
    list of str
        A list in Markdown, one item per line.
    """
    second = sum(claim.get("judged_by") == LAST_QUARTER for claim in claims)
    how = f" (verdicts of the second check: {second})" if second else ""
    reading = "[our reading of the paper](../../reading-the-paper.md)"
    lines = [f"- **Of {len(claims)} claims {_counted(claims)}**{how}, in {reading}."]
    for groups in (("fig2", "fig3"), ("fig4",), ("fig5", "fig6"), ("fig7",), ("fig8",), (PROPERTIES,)):
        own = [claim for claim in claims if _group(claim) in groups]
        if own:
            links = " and ".join(f"[{TITLES[group]}](#{_anchor(TITLES[group])})" for group in groups)
            lines.append(f"- {links}: {_counted(own)}.{_refuted(own)}")
    return [*lines, *_against_baselines(claims, readings), *_advice(remedies)]


def _refuted(claims: Claims) -> str:
    """Name the strongest claim that does not hold."""
    refuted = [claim for claim in claims if claim["verdict"] == "does not hold"]
    if not refuted:
        return ""
    worst = min(refuted, key=lambda claim: claim["effect"])
    return f" Furthest from true: [{worst['claim']}](#{worst['id']}), effect {worst['effect']:g}."


def _against_baselines(claims: Claims, readings: Claims) -> Iterator[str]:
    said = []
    for name in BASELINES:
        own = [claim for claim in claims if claim["id"][:4] in ("fig7", "fig8") and claim["id"].endswith(f"-{name.lower()}")]
        if own:
            said.append(f"{name} in {sum(claim['verdict'] == 'holds' for claim in own)} of {len(own)} panels")
    first = [entry for entry in readings if entry["id"].endswith("-first")]
    shares = ", ".join(f"{entry['effect']:.0%} ({entry['claim'].partition(':')[0]})" for entry in first)
    others = f" Over [other readings of the paper](readings.md) it is first in {shares}." if first else ""
    if said:
        yield f"- FedPDM as published is above {', '.join(said)}.{others}"


def _advice(remedies: Sequence[Remedy]) -> Iterator[str]:
    labels = list(dict.fromkeys(remedy.label for remedy in remedies))
    if len(labels) < 2:
        return
    means = {label: [remedy.interval.mean for remedy in remedies if remedy.label == label] for label in labels}
    widest = max(map(len, means.values()))
    whole = [label for label in labels if len(means[label]) == widest]
    best = max(whole, key=lambda label: sorted(means[label])[widest // 2])
    sides = Counter(remedy.side for remedy in remedies if remedy.label == best)
    counts = ", ".join(f"{count} {side} it" for side, count in sides.items())
    own = "as published" if best == "FedPDM" else f'as "{best}"'
    yield (
        f"- Instead: of the choices for FedPDM that all {widest} panels tried, {own} has the best median difference from the "
        f"best baseline ({counts}); see [what would change that](#where-fedpdm-is-not-first-and-what-would-change-that)."
    )
    yield (
        "- Every epsilon here is nominal, see [the published mechanism](../../privacy/published-mechanism.md). For a guarantee "
        "use the sound mechanism: [the algorithms at a certified epsilon](certified.md)."
    )


def _counted(claims: Claims) -> str:
    counts = Counter(claim["verdict"] for claim in claims)
    return ", ".join(f"{counts[name]} {word}" for name, word in VERDICTS.items() if counts[name]) or "none is judged"


def _group(claim: dict[str, Any]) -> str:
    start = claim["id"][:4]
    return start if start in TITLES else PROPERTIES


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def _section(group: str, claims: Claims, drawn: bool) -> Iterator[str]:
    if drawn:
        shown = ", ".join(f"({p.panel}) {p.title}" for p in panels() if p.figure == group)
        yield f"![{TITLES[group]}]({group}.png)"
        yield ""
        yield f"Panels: {shown}. Numbers: `{group}.csv`."
        links = ", ".join(f"[{claim['id']}](#{claim['id']})" for claim in claims)
        if links:
            yield f"Claims: {links}."
        yield ""
    if claims:
        yield "| id | claim | check | effect | interval | seeds | verdict |"
        yield "|---|---|---|---|---|---|---|"
        yield from map(_line, claims)


def _line(claim: dict[str, Any]) -> str:
    limits: Sequence[float] | None = claim["interval"]
    interval = f"{limits[0]:g} to {limits[1]:g}" if limits else "one seed"
    check = claim["check"].replace("|", "\\|")
    name = f'<a id="{claim["id"]}"></a>{claim["id"]}'
    verdict = claim["verdict"] + (f" ({LAST_QUARTER})" if claim.get("judged_by") == LAST_QUARTER else "")
    return f"| {name} | {claim['claim']} | {check} | {claim['effect']:g} | {interval} | {claim['seeds']} | {verdict} |"
