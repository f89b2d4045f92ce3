"""claims.md: the answer in ten lines, how it came about, and the claims of every figure. All of it is made from verdicts."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fedpdm.runs.folder import _git_commit
from fedpdm.studies.paper.answer import TITLES, Claims, answer_lines, group_of
from fedpdm.studies.paper.claims import LAST_QUARTER
from fedpdm.studies.paper.figures import panels
from fedpdm.studies.paper.remedies import Remedy, remedy_lines
from fedpdm.studies.sequential import LATER_ERROR, MARGIN, Rule

__all__ = ["Provenance", "claims_page"]


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
            lines += list(self._looks(self.rule))
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

    def _looks(self, rule: Rule) -> Iterator[str]:
        yield f"- Looks at {', '.join(map(str, rule.looks))} seeds, for the claims that are still undecided. With a"
        yield f"  probability of at least {1 - rule.total_error:.0%} all intervals of a claim contain its effect; else its"
        yield "  verdict may be wrong."
        if rule.later:
            yield f"  The first cap was {rule.most}, with an error of {rule.error:.0%}. The larger cap was set when results"
            yield f"  of {rule.most} seeds were known, so its looks have a further error of {LATER_ERROR:.0%}."
        yield "- Second check: accuracy claims that the last model leaves undecided are judged by the mean accuracy over the"
        yield f"  last quarter of the rounds, with {rule.total_error:.0%} of error of its own:"
        yield "  [why and when it was added](../../reading-the-paper.md#seeds-until-a-claim-is-decided)."


def claims_page(
    claims: Claims,
    left_out: Sequence[str],
    remedies: Sequence[Remedy],
    figures: Sequence[str],
    provenance: Sequence[str],
    readings: Claims = (),
    rule: Rule | None = None,
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
    rule : Rule, optional
        The sequential test, if there was one.

    Returns
    -------
    list of str
        The lines in Markdown.
    """
    answer = answer_lines(claims, remedies, readings, rule)
    lines = ["# The paper's claims", "", *answer, "", "## How it was found", "", *provenance]
    for group in TITLES:
        own = [claim for claim in claims if group_of(claim) == group]
        if own or group in figures:
            lines += ["", f"## {TITLES[group]}", "", *_section(group, own, group in figures)]
    if left_out:
        lines += ["", f"Left out, as their figures or some of their points were not run: {', '.join(left_out)}."]
    return [*lines, *remedy_lines(remedies)]


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
