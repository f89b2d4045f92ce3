"""The curves of a report as data for the page's script, with words and tables for readers who cannot see them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedpdm.report.reading import Run

__all__ = ["Chart", "make_charts", "show"]

MOST_POINTS = 600  # per curve; no screen shows more
TABLE_ROWS = 11

Rows = list[dict[str, Any]]


class Chart(NamedTuple):
    """One figure: curves over rounds.

    Attributes
    ----------
    kind
        How numbers are written: "fraction", "percent", "bytes" or "number".
    curves
        Per run and quantity: name, run (its index, hence colour), dashed, x, y.
    words
        The text alternative.
    table
        A few rounds with the value of every curve, as text.
    """

    id: str
    title: str
    note: str
    kind: str
    curves: list[dict[str, Any]]
    words: str
    table: list[list[str]]


class Wanted(NamedTuple):
    id: str
    title: str
    note: str
    kind: str
    columns: tuple[str, ...]


WANTED = (
    Wanted("accuracy", "Test accuracy", "after each round, on examples that no client holds", "fraction", ("test_accuracy",)),
    Wanted("loss", "Test loss", "mean after each round, on examples that no client holds", "number", ("test_loss",)),
    Wanted("objective", "Objective", "mean loss plus penalty; reads all training data", "number", ("objective",)),
    Wanted("epsilon", "Epsilon spent", "by the client that has spent most, from the ledger", "number", ("epsilon",)),
    Wanted("bytes", "Bytes sent", "so far, as encoded: up (solid), down (dashed)", "bytes", ("uplink_bytes", "downlink_bytes")),
    Wanted("nonzeros", "Non-zero weights", "share of the model's weights that are not zero", "percent", ("nonzero_fraction",)),
    Wanted("stationarity", "Stationarity", "measure P of Theorem 3; reads all training data", "number", ("stationarity",)),
)
SUFFIX = {"uplink_bytes": " up", "downlink_bytes": " down"}


def make_charts(runs: Sequence[Run]) -> list[Chart]:
    """Make the charts for which the runs have numbers.

    Parameters
    ----------
    runs : sequence of Run
        The runs.

    Returns
    -------
    list of Chart
        The charts.
    """
    charts = []
    for id, title, note, kind, columns in WANTED:
        curves = [curve for i, run in enumerate(runs) for column in columns if (curve := _curve(i, run, column))]
        if curves:
            if id == "epsilon":
                note += f" ({_terms(runs)})"
            words = f"{title} ({note}) by round. " + " ".join(_words(curve, kind) for curve in curves)
            charts.append(Chart(id, title, note, kind, curves, words, _table(curves, kind)))
    return charts


def _terms(runs: Sequence[Run]) -> str:
    """Relation and delta, without which no epsilon is to be read."""
    kept = [run.spending for run in runs if run.spending]
    return "; ".join(dict.fromkeys(f"{spending.relation}, delta = {spending.delta:g}" for spending in kept))


def _curve(index: int, run: Run, column: str) -> dict[str, Any] | None:
    rows = run.rows
    if column == "epsilon":
        if not run.spending:
            return None
        points = [(row["round"], spent) for row, spent in zip(rows, run.spending.worst, strict=True)]
    else:
        points = [(row["round"], row[column]) for row in rows if row.get(column) is not None]
    if not points:
        return None
    points = _thin(points, MOST_POINTS)
    return {
        "name": run.name + SUFFIX.get(column, ""),
        "run": index,
        "dashed": column == "downlink_bytes",
        "x": [x for x, _ in points],
        "y": [float(f"{y:.6g}") for _, y in points],
    }


def _thin(points: Sequence[Any], most: int) -> list[Any]:
    """Return at most `most` of the points, evenly spread, with the first and the last."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def _words(curve: dict[str, Any], kind: str) -> str:
    x, y = curve["x"], curve["y"]
    low, high = min(y), max(y)
    return (
        f"{curve['name']}: {show(y[0], kind)} after round {x[0]}, {show(y[-1], kind)} after round {x[-1]}; "
        f"lowest {show(low, kind)} (round {x[y.index(low)]}), highest {show(high, kind)} (round {x[y.index(high)]})."
    )


def _table(curves: Sequence[dict[str, Any]], kind: str) -> list[list[str]]:
    rounds = _thin(sorted({x for curve in curves for x in curve["x"]}), TABLE_ROWS)
    values = [dict(zip(curve["x"], curve["y"], strict=True)) for curve in curves]
    body = [[str(x), *(show(v[x], kind) if x in v else "" for v in values)] for x in rounds]
    return [["round", *(curve["name"] for curve in curves)], *body]


def _bytes(value: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.3g} {unit}"


_SHOW: dict[str, Callable[[float], str]] = {
    "fraction": lambda value: f"{value:.4f}",
    "percent": lambda value: f"{value:.1%}".replace("%", " %"),
    "bytes": _bytes,
    "number": lambda value: f"{value:.4g}",
}


def show(value: float | None, kind: str) -> str:
    """Format a number for readers.

    Parameters
    ----------
    value : float or None
        The number.
    kind : str
        The kind of quantity.

    Returns
    -------
    str
        The text.

    Examples
    --------
    >>> show(0.87161, "fraction"), show(0.8876, "percent"), show(28_300_000, "bytes"), show(None, "number")
    ('0.8716', '88.8 %', '28.3 MB', '–')
    """
    return "–" if value is None else _SHOW[kind](value)
