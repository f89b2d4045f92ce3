"""The answer in ten lines, at the top of claims.md: what is true, under which reading, and what to do instead."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from fedpdm.studies.paper.claims import LAST_QUARTER
from fedpdm.studies.paper.effects import BASELINES
from fedpdm.studies.paper.multiverse.analysis import BEST, BEST_TITLE
from fedpdm.studies.paper.multiverse.factors import FACTORS
from fedpdm.studies.paper.remedies import Remedy
from fedpdm.studies.sequential import Rule

__all__ = ["Claims", "TITLES", "anchor", "answer_lines", "group_of"]

VERDICTS = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "no difference": ("shows no difference", "show no difference"),
    "undecided": ("is undecided", "are undecided"),
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
# What the paper says with each figure; Figures 7 and 8 have a line of their own
SAID = {
    "fig4": "more privacy budget and more rounds give more accuracy",
    "fig5": "a smaller non-convex term is better",
    "fig2": "a smaller uplink loses accuracy, with top-k less than with rand-k",
    "fig3": "a smaller downlink loses accuracy",
    "fig6": "a larger L1 penalty hurts without noise and helps with it",
    PROPERTIES: "half of the bytes of two vectors, sparse models, and P falls like 1/T",
}
# What a remedy is, and the setting that makes it
REMEDIES = {
    "FedPDM": "use FedPDM as published",
    "cached": "let the server average the last message of every client, not only those of the round "
    "(`algorithm.server_rule=cached`)",
    "dual-memory": "let the server average the duals of all clients (`algorithm.server_rule=dual-memory`)",
}
TITLES_OF_FACTORS = {factor.name: factor.title for factor in FACTORS} | {"tested": "which model is tested"}
Claims = Sequence[dict[str, Any]]


def group_of(claim: dict[str, Any]) -> str:
    """Return the figure of a claim, or the group of the paper's properties.

    Parameters
    ----------
    claim : dict
        An entry of claims.json.

    Returns
    -------
    str
        A key of `TITLES`.
    """
    start = claim["id"][:4]
    return start if start in TITLES else PROPERTIES


def anchor(title: str) -> str:
    """Return the anchor of a heading.

    Parameters
    ----------
    title : str
        The heading.

    Returns
    -------
    str
        The anchor.
    """
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def answer_lines(claims: Claims, remedies: Sequence[Remedy], readings: Claims = (), rule: Rule | None = None) -> list[str]:
    """Say in at most ten lines what is true, under which reading, and what to do instead.

    Parameters
    ----------
    claims : sequence of dict
        The entries of claims.json.
    remedies : sequence of Remedy
        FedPDM with other choices, against the best baseline.
    readings : sequence of dict
        The entries of readings.json, if the readings were run.
    rule : Rule, optional
        The sequential test, if there was one.

    Returns
    -------
    list of str
        A list in Markdown, one item per line.
    """
    reading = "[our reading of it](../../reading-the-paper.md)"
    lines = [f"- **In short:** of the paper's {len(claims)} claims {_counted(claims)}, in {reading}."]
    return [*lines, *_by_figure(claims), *_main_claim(claims), *_readings(readings), *_advice(remedies), *_doubts(claims, rule)]


def _by_figure(claims: Claims) -> Iterator[str]:
    """What is true throughout, what in part, and what is not."""
    found: dict[str, list[str]] = {"True": [], "True in part": [], "Not true, or not shown": []}
    for group, said in SAID.items():
        own = [claim for claim in claims if group_of(claim) == group]
        held = sum(claim["verdict"] == "holds" for claim in own)
        if own:
            name = "True" if held == len(own) else "True in part" if held else "Not true, or not shown"
            found[name].append(f"[{said}](#{anchor(TITLES[group])}) ({_counted(own)})")
    refuted = [claim for claim in claims if claim["verdict"] == "does not hold" and group_of(claim) in SAID]
    for text in dict.fromkeys(_without_data(claim) for claim in refuted):
        where = [claim for claim in refuted if _without_data(claim) == text]
        found["Not true, or not shown"].append(f"{text} ({', '.join(_link(claim) for claim in where)})")
    for name, parts in found.items():
        if parts:
            yield f"- **{name}:** {'; '.join(parts)}."


def _without_data(claim: dict[str, Any]) -> str:
    return claim["claim"].partition(": ")[2] or claim["claim"]


def _link(claim: dict[str, Any]) -> str:
    return f"[{claim['claim'].partition(': ')[0]}](#{claim['id']})"


def _main_claim(claims: Claims) -> Iterator[str]:
    """FedPDM against the baselines: how often it is better, and where it is worst."""
    compared = [claim for claim in claims if group_of(claim) in ("fig7", "fig8") and _rival(claim)]
    if not compared:
        return
    held = [claim for claim in compared if claim["verdict"] == "holds"]
    said = []
    for name in BASELINES:
        own = [claim for claim in compared if _rival(claim) == name]
        if own:
            said.append(f"{name} in {sum(claim['verdict'] == 'holds' for claim in own)} of {len(own)}")
    worst = min(compared, key=lambda claim: claim["effect"])
    true = "true in all" if len(held) == len(compared) else f"true in {len(held)} of {len(compared)}"
    loss = f" At worst it is {-100 * worst['effect']:.1f} points below {_rival(worst)} ([{worst['id']}](#{worst['id']}))."
    links = " and ".join(f"[{n}](#{anchor(TITLES[f'fig{n[-1]}'])})" for n in ("Figure 7", "Figure 8"))
    yield (
        f"- **The main claim, FedPDM beats the baselines, is {true} comparisons** ({links}): it is above "
        f"{', '.join(said)}.{loss if worst['effect'] < 0 else ''}"
    )


def _rival(claim: dict[str, Any]) -> str | None:
    return next((name for name in BASELINES if claim["id"].endswith(f"-{name.lower()}")), None)


def _readings(readings: Claims) -> Iterator[str]:
    first = [entry for entry in readings if entry["id"].endswith("-first")]
    if not first:
        return
    shares = ", ".join(f"{entry['effect']:.0%} ({entry['claim'].partition(':')[0]})" for entry in first)
    near = [entry["effect"] for entry in readings if entry["id"].endswith("-near")]
    within = f", and first or within half a point of the first in {min(near):.0%} to {max(near):.0%}" if near else ""
    decides = Counter(entry["decides"] for entry in first if entry.get("decides"))
    most = f" What decides most: {', '.join(TITLES_OF_FACTORS[name] for name in decides)}." if decides else ""
    best = next((entry for entry in readings if entry["id"] == BEST), None)
    if max(entry["effect"] for entry in first) >= 0.5:
        title = "It depends on the reading"
    elif best and best.get("held_again") == best["claims"]:
        title = "Few other readings rescue it"
    else:
        title = "Another reading does not rescue it"
    where = "over [many readings of the paper's silent places](readings.md)"
    yield f"- **{title}:** {where} FedPDM is first in {shares}{within}.{most}{_fit(best)}"


def _fit(best: dict[str, Any] | None) -> str:
    if best is None:
        return ""
    again = f", and {best['held_again']} with {best['seeds_again']} other seeds" if "held_again" in best else ""
    fits = f"[the one that fits best](readings.md#{anchor(BEST_TITLE)})"
    differs = f"differing in {len(best['changes'])} of {len(FACTORS)} factors from ours"
    return f" In {fits}, {differs}, {best['held']} of {best['claims']} headline claims hold{again}."


def _advice(remedies: Sequence[Remedy]) -> Iterator[str]:
    """The choice for FedPDM with the best median difference from the best baseline, and where it fails."""
    labels = list(dict.fromkeys(remedy.label for remedy in remedies))
    if len(labels) < 2:
        return
    means = {label: [remedy.interval.mean for remedy in remedies if remedy.label == label] for label in labels}
    widest = max(map(len, means.values()))
    whole = [label for label in labels if len(means[label]) == widest]
    best = max(whole, key=lambda label: sorted(means[label])[widest // 2])
    own = [remedy for remedy in remedies if remedy.label == best]
    sides = Counter(remedy.side for remedy in own)
    seen = "[all choices that were tried](#where-fedpdm-is-not-first-and-what-would-change-that)"
    yield (
        f"- **What to do instead:** {REMEDIES.get(best, f'use FedPDM with {best}')}. Then FedPDM is above the best baseline in "
        f"{sides['above']} of {widest} panels, level with it in {sides['within the interval of']}, below it in "
        f"{sides['below']} ({seen}, none tuned).{''.join(_exceptions(own, remedies))}"
    )
    yield (
        "- **Privacy:** every epsilon on this page is nominal and [can be refuted](../../privacy/published-mechanism.md). "
        "For a guarantee use the sound mechanism: [the algorithms at a certified epsilon](certified.md)."
    )


def _exceptions(own: Sequence[Remedy], remedies: Sequence[Remedy]) -> Iterator[str]:
    for remedy in own:
        if remedy.side == "below":
            there = [other for other in remedies if other.panel.name == remedy.panel.name]
            better = max(there, key=lambda other: other.interval.mean)
            name = "FedPDM as published" if better.label == "FedPDM" else f'"{better.label}"'
            yield (
                f" Not in {remedy.panel.name} ({remedy.panel.title}): {-100 * remedy.interval.mean:.0f} points below "
                f"{remedy.best}; best there is {name} ({100 * better.interval.mean:+.1f})."
            )


def _doubts(claims: Claims, rule: Rule | None) -> Iterator[str]:
    """How sure the verdicts are, and which are missing."""
    open_ones = [claim for claim in claims if claim["verdict"] == "undecided"]
    if rule:
        judged = len(claims) - len(open_ones)
        second = sum(claim.get("judged_by") == LAST_QUARTER for claim in claims)
        yield (
            f"- **How sure:** a verdict is wrong with a probability of at most {rule.total_error:.0%}, so of {judged} verdicts "
            f"about {rule.total_error * (judged + second):.0f} may be wrong. {second} of them need the second check, which has "
            "as much error again."
        )
    if open_ones:
        seeds = max(claim["seeds"] for claim in open_ones)
        named = ", ".join(f"[{claim['id']}](#{claim['id']})" for claim in open_ones)
        yield f"- **Undecided**, with up to {seeds} seeds: {named}. There seeds differ by more than the effect."


def _counted(claims: Claims) -> str:
    counts = Counter(claim["verdict"] for claim in claims)
    parts = [f"{counts[name]} {words[counts[name] > 1]}" for name, words in VERDICTS.items() if counts[name]]
    if len(parts) < 2:
        return parts[0] if parts else "none is judged"
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
