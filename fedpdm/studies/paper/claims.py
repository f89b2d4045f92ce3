"""The paper's claims as a table, fixed before the results were seen.

The Student t interval of the effect over the seeds decides: "holds" when all of it is above zero, "does not hold" when all of
it is below, "no difference" when it reaches zero and lies within the margin, else "undecided". The margin is half a point of
accuracy; for a trend, half a point from the first setting to the last. Effects that are no accuracies have no margin. The
verdict "no difference" was added when the results with five seeds were known.

With seeds until decided there is a second check, for claims about accuracies that the first leaves undecided: the same
effect on the mean accuracy over the last quarter of the measured rounds. One accuracy on a curve that jumps says little; their
mean says more, about a slightly different thing. It was added when 16 claims were undecided by the first check, before any of
its own results was computed. It has the same looks, and its own 5 % of error: a claim that it decides is wrong in at most 10 %.

One check was changed after a trial: P4 asked for equal bits, until models on digits differed by 1e-8; now it allows rounding.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedpdm.studies.paper.effects import (
    BASELINES,
    FIT,
    ROUNDING,
    TOLERANCE,
    Effect,
    FirstSeeds,
    LastQuarter,
    MissingCellError,
    Table,
    cost_falls,
    cost_ratio,
    difference,
    element_wise,
    exact,
    falls_like_one_over_t,
    half_of_two_vectors,
    more_robust,
    more_sensitive,
    noise_costs,
    over_curves,
    over_points,
    rises,
    sparser,
    top_k_gap,
)
from fedpdm.studies.paper.figures import Key, panels
from fedpdm.studies.sequential import MARGIN, Decision, Rule, decide
from fedpdm.studies.statistics import t_interval, verdict

__all__ = ["CLAIMS", "LAST_MODEL", "LAST_QUARTER", "PaperClaim", "judge", "judge_all", "points_of_claim"]

DATA = {"a": "Adult", "b": "MNIST"}
CONFIDENCE = 0.95
LAST_MODEL, LAST_QUARTER = "last model", "mean of the last quarter"  # the accuracies of the first and of the second check
TREND = "least-squares slope of the accuracy over the rank of the setting"


class PaperClaim(NamedTuple):
    """A claim of the paper, with the check that decides it."""

    id: str
    claim: str
    check: str  # what is positive when the claim holds
    panels: tuple[str, ...]  # the panels that it is about
    effect: Effect
    margin: float | None = MARGIN  # an effect within it is no difference; None: there is no such verdict


def points_of_claim(claim: PaperClaim, table: Table) -> set[Key]:
    """Find the points that a claim is computed from.

    Parameters
    ----------
    claim : PaperClaim
        The claim.
    table : Table
        Results of every point, one per seed.

    Returns
    -------
    set of Key
        The points.
    """
    view = FirstSeeds(table, 1)
    claim.effect(view)
    return view.read


def judge(claim: PaperClaim, table: Table, rule: Rule | None = None) -> dict[str, Any]:
    """Compute the effect of a claim, with its interval and verdict.

    Parameters
    ----------
    claim : PaperClaim
        The claim.
    table : Table
        Results of every point, one per seed.
    rule : Rule, optional
        Judge at the looks of this rule, with the seeds that all points of the claim have, and by the second check what the
        first leaves undecided; else once, with a 95 % interval.

    Returns
    -------
    dict
        An entry of claims.json.
    """
    common = min(len(table[key]) for key in points_of_claim(claim, table))
    effects, by = claim.effect(FirstSeeds(table, common)), LAST_MODEL
    if rule:
        decision = decide(effects, claim.margin, rule)
        if decision.verdict == "undecided" and (second := _second_check(claim, LastQuarter(table, common), rule)):
            decision, by = second, LAST_QUARTER
        interval, confidence, found, seeds = decision
    else:
        interval, confidence, seeds = t_interval(effects), CONFIDENCE, len(effects)
        found = verdict(interval, claim.margin)
    limits = [_short(interval.low), _short(interval.high)] if math.isfinite(interval.low) else None
    return {
        "id": claim.id,
        "claim": claim.claim,
        "check": claim.check,
        "effect": _short(interval.mean),
        "interval": limits,
        "confidence": round(confidence, 5),
        "margin": None if claim.margin is None else _short(claim.margin),
        "verdict": found,
        "judged_by": by,
        "seeds": seeds,
    }


def _second_check(claim: PaperClaim, table: LastQuarter, rule: Rule) -> Decision | None:
    """Judge a claim about accuracies by their mean over the last quarter; None if this does not decide it either."""
    if claim.margin is None:
        return None
    try:
        decision = decide(claim.effect(table), claim.margin, rule)
    except MissingCellError:
        return None
    return None if decision.verdict == "undecided" else decision


def judge_all(table: Table, rule: Rule | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Judge all claims for which there are results.

    Parameters
    ----------
    table : Table
        Results of every point, one per seed.
    rule : Rule, optional
        As for `judge`.

    Returns
    -------
    tuple
        The entries of claims.json, and the ids of the other claims.
    """
    judged, left_out = [], []
    for claim in CLAIMS:
        try:
            judged.append(judge(claim, table, rule))
        except MissingCellError:
            left_out.append(claim.id)
    return judged, left_out


def _over(panel: str) -> float:
    """The margin of a trend over the settings of a panel: half a point from the first to the last."""
    found = next(p for p in panels() if p.name == panel)
    return MARGIN / (len(found.sweep.values if found.sweep else found.curves) - 1)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _sparsification() -> Iterator[PaperClaim]:
    both2, both3 = ("fig2a", "fig2b"), ("fig3a", "fig3b")
    for p, data in DATA.items():
        name = f"fig2{p}"
        check = "smallest step in uplink bytes between neighbouring alpha_U, top-k and rand-k, as a share of the cost at 1"
        yield PaperClaim(f"{name}-cost", f"{data}: the uplink cost falls with alpha_U", check, (name,), cost_falls(name), None)
        for curve in ("top-k", "rand-k"):
            text = f"{data}, {curve}: a smaller alpha_U loses accuracy"
            yield PaperClaim(f"{name}-loss-{curve}", text, f"{TREND}: alpha_U", (name,), over_points(name, curve), _over(name))
        text = f"{data}: top-k is above rand-k"
        check = "top-k minus rand-k, mean over the ratios below 1"
        yield PaperClaim(f"{name}-top-k", text, check, (name,), lambda table, name=name: list(top_k_gap(table, name)))
    text = "Adult is less sensitive to alpha_U than MNIST"
    check, effect = f"{TREND}: alpha_U, MNIST minus Adult, top-k", more_sensitive("fig2")
    yield PaperClaim("fig2-sensitivity", text, check, both2, effect, _over("fig2b"))
    text, check = "Top-k is above rand-k on MNIST most of all", "the gap of fig2b-top-k minus that of fig2a-top-k"
    yield PaperClaim("fig2-gap", text, check, both2, lambda table: list(top_k_gap(table, "fig2b") - top_k_gap(table, "fig2a")))
    for p, data in DATA.items():
        text = f"{data}: a smaller alpha_D loses accuracy"
        name = f"fig3{p}"
        yield PaperClaim(f"{name}-loss", text, f"{TREND}: alpha_D, top-k", (name,), over_points(name, "top-k"), _over(name))
    text = "MNIST is more sensitive to alpha_D than Adult"
    check, effect = f"{TREND}: alpha_D, MNIST minus Adult, top-k", more_sensitive("fig3")
    yield PaperClaim("fig3-sensitivity", text, check, both3, effect, _over("fig3b"))


def _privacy_and_penalties() -> Iterator[PaperClaim]:
    for p, data, most in (("a", "Adult", "epsilon 1"), ("b", "MNIST", "epsilon 30")):
        name = f"fig4{p}"
        text = f"{data}: more epsilon is better"
        check = f"{TREND}: epsilon, without DP last"
        yield PaperClaim(f"{name}-epsilon", text, check, (name,), over_curves(name, 1.0), _over(name))
        text, check = f"{data}: without DP is best", f"without DP minus {most}"
        yield PaperClaim(f"{name}-none", text, check, (name,), difference(name, "without DP", most))
        check = "last quarter minus first quarter of the test accuracies, mean over the curves"
        yield PaperClaim(f"{name}-rounds", f"{data}: accuracy rises with rounds", check, (name,), rises(name))
    for p, data in DATA.items():
        text = f"{data}: a smaller beta is better"
        name = f"fig5{p}"
        yield PaperClaim(f"{name}-beta", text, f"minus the {TREND}: beta", (name,), over_curves(name, -1.0), _over(name))
    for without, with_noise, data in (("a", "b", "Adult"), ("c", "d", "MNIST")):
        pair = (f"fig6{without}", f"fig6{with_noise}")
        text, check = f"{data}, without DP: a smaller gamma is better", f"minus the {TREND}: gamma"
        yield PaperClaim(f"{pair[0]}-gamma", text, check, pair[:1], over_curves(pair[0], -1.0), _over(pair[0]))
        text, check = f"{data}, with DP: a larger gamma is better", f"{TREND}: gamma"
        yield PaperClaim(f"{pair[1]}-gamma", text, check, pair[1:], over_curves(pair[1], 1.0), _over(pair[1]))
        text, check = f"{data}: accuracy is better without DP", "without minus with DP, mean over gamma"
        yield PaperClaim(f"fig6-{data.lower()}-noise", text, check, pair, noise_costs(*pair))


def _comparisons() -> Iterator[PaperClaim]:
    titles = {panel.name: panel.title for panel in panels()}
    for figure in ("fig7", "fig8"):
        for name in (f"{figure}{p}" for p in "abcd"):
            for other in BASELINES:
                text = f"{titles[name]}: FedPDM is above {other}"
                effect = difference(name, "FedPDM", other)
                yield PaperClaim(f"{name}-{other.lower()}", text, f"FedPDM minus {other}", (name,), effect)
    for without, with_noise, data in (("fig7a", "fig7b", "Adult"), ("fig7c", "fig7d", "MNIST")):
        pair = (without, with_noise)
        text, check = f"{data}: every algorithm loses by DP", "without minus with DP, mean over the algorithms"
        yield PaperClaim(f"fig7-{data.lower()}-noise", text, check, pair, noise_costs(*pair))
        text, check = f"{data}: FedPDM loses least by DP", "mean loss of the baselines minus that of FedPDM"
        yield PaperClaim(f"fig7-{data.lower()}-robust", text, check, pair, more_robust(*pair))


def _properties() -> Iterator[PaperClaim]:
    for p, data in DATA.items():
        base = f"fig2{p}"
        text, check = f"{data}: the element-wise mean is above the plain mean", "top-k, alpha_U 0.1: element-wise minus plain"
        yield PaperClaim(f"P1{p}", text, check, (base,), element_wise(base, f"P1{p}"))
        text = f"{data}: the uplink is 50 % x alpha_U of sending (x, lambda), as encoded"
        check = f"{TOLERANCE} minus the largest relative distance from that, top-k, alpha_U below 1, indices included"
        yield PaperClaim(f"P2{p}-encoded", text, check, (base,), cost_ratio(base), None)
        text = f"{data}: ratios of 1 give DP-FedPDM exactly"
        check = f"{ROUNDING} minus the largest difference of the models, as a share of the largest coordinate, after 10 rounds"
        yield PaperClaim(f"P4{p}", text, check, (base,), exact(f"P4{p}"), None)
        text = f"{data}: the running mean of P falls like 1/T to a floor"
        check = f"R^2 of the fit a/T + c with a > 0, minus {FIT}; without noise"
        yield PaperClaim(f"T3{p}", text, check, (f"fig4{p}",), falls_like_one_over_t(f"T3{p}"), None)
    for p, data in (("a", "Adult"), ("c", "MNIST")):
        text, check = f"{data}: one vector, half of what two take", f"{TOLERANCE} minus |bytes over SCAFFOLD's / 0.5 - 1|"
        yield PaperClaim(f"P2-{data.lower()}-half", text, check, (f"fig7{p}",), half_of_two_vectors(f"fig7{p}"), None)
        text, check = f"{data}: the L1 penalty gives a sparse model", "share of non-zeros at gamma 0 minus at gamma 0.5"
        yield PaperClaim(f"P3-{data.lower()}", text, check, (f"fig6{p}",), sparser(f"fig6{p}"), None)


CLAIMS = (*_sparsification(), *_privacy_and_penalties(), *_comparisons(), *_properties())
