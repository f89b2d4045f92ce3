"""The sentences of a report about the training and the guarantee."""

from typing import Any, NamedTuple

from scipy.special import ndtr

from fedpdm.choices import AGGREGATES, ALGORITHMS, GAMMA, PARTITIONS, PENALTIES
from fedpdm.data.features import map_words
from fedpdm.privacy.accounting import gdp_mu
from fedpdm.report.charts import show
from fedpdm.report.reading import Run
from fedpdm.runs.attackers import attack_words

__all__ = ["Guarantee", "guarantee", "what_was_trained", "majority_rate"]


class Guarantee(NamedTuple):
    """The statement about privacy.

    Attributes
    ----------
    state
        "proven", "nominal" or "none": how the page shows it. Only "proven" is ever called a guarantee.
    sentence
        The one sentence to quote; under "nominal" a warning.
    meaning
        An explanation of the numbers for readers who do not know them.
    facts
        Pairs of a term and its value.
    caveat, simulated
        Conclusions that the reader must not draw, and whether the noise was a simulation's.
    """

    state: str
    title: str
    sentence: str
    meaning: str
    facts: list[tuple[str, str]]
    caveat: str
    simulated: bool = False


def guarantee(run: Run) -> Guarantee:
    """Word the guarantee of a run, from its summary.

    Parameters
    ----------
    run : Run
        A finished run.

    Returns
    -------
    Guarantee
        The sentences for the page.
    """
    summary = run.summary
    sentence, caveat = str(summary.get("guarantee", "")), _caveat(run)
    if summary.get("mechanism") == "paper":
        title = "Warning: a nominal figure, not a guarantee"
        meaning = "Do not quote this epsilon as a privacy guarantee: attacks on the same mechanism exceed it."
        return Guarantee("nominal", title, sentence, meaning, _nominal_facts(summary), caveat, bool(caveat))
    epsilon, delta = summary.get("epsilon"), summary.get("delta")
    if summary.get("mechanism") != "sound" or epsilon is None or delta is None:
        return Guarantee("none", "No privacy guarantee", sentence, "", [], "")
    relation, unit = str(summary.get("relation")), summary.get("unit_column")
    before = summary.get("schema_epsilon", 0.0)  # the ledger has the budget that the schema left
    facts = [
        ("epsilon spent", f"{epsilon:.4g}" + (f" of {run.spending.budget + before:g}" if run.spending else "")),
        ("delta", f"{delta:g}"),
        ("relation", f"{relation}: {_change(relation, unit)}"),
        ("unit", str(summary.get("unit", "–"))),
        ("adversary", str(summary.get("adversary", "–"))),
        ("one client takes part", f"at most {summary.get('participations', '–')} times"),
        ("mode", str(summary.get("mode", "–"))),
        ("noise over sensitivity", f"{summary['noise_multiplier']:.4g}" if "noise_multiplier" in summary else "–"),
    ]
    return Guarantee(
        "proven",
        "Differential privacy, proven",
        sentence,
        _meaning(epsilon, delta, relation, unit),
        facts,
        caveat,
        bool(caveat),
    )


def _change(relation: str, unit: str | None) -> str:
    it, is_, one = ("the row", "is", "this one") if unit is None else (f"the rows of one {unit}", "are", "these")
    there = "it is not" if unit is None else "none of them is"
    other = "another in its place" if unit is None else "those of another in their place"
    return f"{it} {is_} there, or {there}" if relation == "add-remove" else f"{it} {is_} {one}, or {other}"


def _meaning(epsilon: float, delta: float, relation: str, unit: str | None) -> str:
    """Explain epsilon by right guesses at even odds: Phi(mu/2), exact for Gaussian noise (docs/privacy/promise.md)."""
    if epsilon <= 0:
        return "No participation was recorded, so nothing about any row has been released."
    right = float(ndtr(gdp_mu(epsilon, delta) / 2))
    whose = "one row was" if unit is None else f"the rows of one {unit} were"
    which = "which of two rows was" if unit is None else f"which of two {unit}s' rows were"
    question = f"whether {whose} there" if relation == "add-remove" else f"{which} there"
    return (
        f"Somebody who knows every other row and sees every message, and guesses at even odds {question}, is right in at most "
        f"{100 * right:.1f} % of the cases; 50 % is blind guessing."
    )


def _nominal_facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("epsilon, nominal", show(summary.get("epsilon_nominal"), "number")),
        ("same noise, composed, its sensitivity granted", show(summary.get("epsilon_face_value"), "number")),
        ("delta", show(summary.get("delta"), "number")),
        ("relation", str(summary.get("relation"))),
    ]


def _caveat(run: Run) -> str:
    if not str(run.manifest.get("noise") or "").startswith("simulated"):
        return ""
    return (
        "This was a simulation: its noise is pseudo-random, from a seed in the run folder. It measures accuracy at this "
        "privacy level, and does not protect real data. Objective, stationarity and the labels that clients hold are "
        "diagnostics that no guarantee covers."
    )


def what_was_trained(run: Run) -> str:
    """Describe model, data, clients, algorithm and rounds in two sentences.

    Parameters
    ----------
    run : Run
        A finished run.

    Returns
    -------
    str
        The sentences.
    """
    c, classes, columns = run.config, len(run.class_names), len(run.feature_names)
    kind = "A linear model" if run.linear else "A custom model"
    what = f"{classes} classes" if classes > 1 else f"the number {run.class_names[0]}"
    size = f"{what} × {columns} features" if run.linear else f"{run.model.size} parameters"
    row = PENALTIES.row(c.problem.penalty)
    penalty = f" with {row.title}" if row.title and (c.problem.gamma or GAMMA not in row.options) else ""
    behind = "" if c.data.features == "raw" else f" with the public feature map {_map(run)}"
    column = c.data.partition == "column"
    dealt = f"one for each {c.data.client_column}" if column else PARTITIONS.row(c.data.partition).title.format(**vars(c.data))
    name = c.data.name
    if name == "own":  # a deployment, or arrays: nobody dealt the rows
        name, dealt = "the clients' own data", "each with its own rows"
    return (
        f"{kind} of {name}{behind}: {size}, {c.problem.loss} loss{penalty}. "
        f"{ALGORITHMS.row(c.algorithm.name).title} trained it in {run.summary.get('rounds', c.rounds.total)} rounds, with "
        f"{c.rounds.participants} of {c.data.clients} clients in a round, {dealt}."
    ) + _defence(run)


def _map(run: Run) -> str:
    """Name the feature map; "auto" is replaced where a schema tells the columns."""
    return run.config.data.features if run.schema is None else map_words(run.config.data, run.schema.feature_names)


def _defence(run: Run) -> str:
    """Describe the aggregate and the simulated attackers, where there are any."""
    c, words = run.config, ""
    if c.algorithm.aggregate != "mean":
        words += f" The server combined messages by the {AGGREGATES.row(c.algorithm.aggregate).title}."
    if c.attack.kind != "none":
        words += f" {attack_words(c, run.summary)}"
    return words


def majority_rate(run: Run) -> float | None:
    """Compute the accuracy of always predicting the most frequent class of the test examples.

    Parameters
    ----------
    run : Run
        A finished run.

    Returns
    -------
    float or None
        None if the run does not know the test labels.
    """
    counts = run.clients.get("test_labels")
    return max(counts) / sum(counts) if counts else None
