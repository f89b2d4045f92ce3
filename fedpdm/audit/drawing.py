"""A picture of the measured trade-off of an attack's errors."""

import math
from pathlib import Path

import numpy as np
from scipy.special import ndtr, ndtri

from fedpdm.audit.verdict import AuditResult, error_rates

__all__ = ["plot"]


def plot(result: AuditResult, path: str | Path) -> None:
    """Draw the measured trade-off of errors, with its pointwise confidence, against the claim. Points below it are a breach.

    Parameters
    ----------
    result : AuditResult
        The result with its scores.
    path : path
        The picture; its ending chooses the format.
    """
    from matplotlib.figure import Figure  # slow to import; the object interface needs no backend and no global state

    pair = (result.scores_with, result.scores_without)
    thresholds = np.quantile(np.concatenate(pair), np.linspace(0, 1, 300))
    level = 1 - (1 - result.confidence) / 2
    positives = (pair[1][:, None] > thresholds).mean(axis=0)
    negatives = (pair[0][:, None] <= thresholds).mean(axis=0)
    alpha = np.linspace(0, 1, 500)
    e = math.exp(min(result.claimed_epsilon, 700.0))
    claimed = np.maximum(0, np.maximum(1 - result.delta - e * alpha, (1 - result.delta - alpha) / e))

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(alpha, claimed, "k-", label=f"claimed: epsilon = {result.claimed_epsilon:g}, delta = {result.delta:g}")
    if result.claimed_mu:
        curve = ndtr(-ndtri(alpha) - result.claimed_mu)
        axes.plot(alpha, curve, "k--", label=f"claimed: mu = {result.claimed_mu:.3g} (GDP)")
    axes.plot(positives, negatives, "C0.-", markersize=3, label=f"measured, {result.runs // 2} runs each")
    axes.plot(*error_rates(pair, thresholds, level), "C0:", label=f"upper bounds, {100 * result.confidence:g} %")
    axes.set(xlabel="false positive rate", ylabel="false negative rate", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_title(f"{result.attack} on {result.mechanism} ({result.relation}): epsilon >= {result.lower_bound:.3g}")
    axes.legend(loc="upper right", fontsize="small")
    figure.savefig(path)
