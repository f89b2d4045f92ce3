"""The test figures of a run for the page: a table with intervals, classes, confusions, and calibration curves."""

from typing import Any, NamedTuple

from fedpdm.choices import METRICS
from fedpdm.report.reading import Run

__all__ = ["MetricsView", "view_metrics"]

SIDE, MARGIN = 220, 34  # of a drawing, in pixels
MOST_CURVES = 6


class MetricsView(NamedTuple):
    """The test figures of a run, as the page shows them.

    Attributes
    ----------
    figures
        Title, value, interval, the averaged model's value, and what it means.
    classes
        Per class its name, rows, and the texts of recall, precision and AUC.
    confusion
        Rows of the matrix: name of the true class, then per predicted class the count and its share of the row.
    curves
        Calibration: class, SVG, words.
    """

    rows: Any
    threshold: float | None
    figures: list[dict[str, str]]
    classes: list[dict[str, str]]
    confusion: list[tuple[str, list[tuple[str, float]]]]
    curves: list[dict[str, str]]


def view_metrics(run: Run) -> MetricsView | None:
    """Return the test figures of a run.

    Parameters
    ----------
    run : Run
        The run, as it was read from its folder.

    Returns
    -------
    MetricsView or None
        The figures; None if the run has none, for example without test rows.
    """
    last, averaged = run.summary.get("metrics"), run.summary.get("metrics_averaged") or {}
    found = last or averaged  # a deployment's clients evaluate one model, the one that is released
    if not found or found.get("kind") in ("number", "time"):
        return None
    figures = [
        {
            "title": metric.title,
            "value": _text(found[metric.key]),
            "interval": _interval(found[metric.key]),
            "averaged": _text(averaged.get(metric.key, {})),
            "meaning": metric.summary,
        }
        for metric in METRICS.values()
        if metric.key in found
    ]
    names = [entry["name"] for entry in found["classes"]]
    confusion = [
        (name, [(f"{cell:.0f}", cell / max(sum(row), 1e-9)) for cell in row])
        for name, row in zip(names, found["confusion"], strict=True)
    ]
    shown = names[1:] if len(names) == 2 else names
    curves = [
        {"name": name, "svg": _drawing(points), "words": _words(name, points)}
        for name, points in list(zip(shown, found["calibration"], strict=True))[:MOST_CURVES]
    ]
    return MetricsView(
        round(found["rows"]), found.get("threshold"), figures, [_class(entry) for entry in found["classes"]], confusion, curves
    )


def _text(entry: dict[str, Any]) -> str:
    value = entry.get("value")
    return "–" if value is None else f"{value:.4f}"


def _interval(entry: dict[str, Any]) -> str:
    return "–" if not entry.get("interval") else "{:.4f} to {:.4f}".format(*entry["interval"])


def _with_interval(entry: dict[str, Any]) -> str:
    return f"{_text(entry)} ({_interval(entry)})" if entry.get("interval") else _text(entry)


def _class(entry: dict[str, Any]) -> dict[str, str]:
    each = {key: _with_interval(entry[key]) for key in ("recall", "precision", "auc")}
    return {"name": entry["name"], "rows": f"{entry['rows']:.0f}", **each}


def _words(name: str, points: list[dict[str, Any]]) -> str:
    parts = [f"predicted {p['predicted']:.3f}, observed {p['value']:.3f} in {p['rows']:.0f} rows" for p in points]
    return f"Calibration of {name}: " + "; ".join(parts) + "."


def _drawing(points: list[dict[str, Any]]) -> str:
    """Draw observed shares against predicted probabilities, with intervals; only numbers enter the text."""
    inner = SIDE - 2 * MARGIN

    def at(x: float, y: float) -> tuple[float, float]:
        return round(MARGIN + inner * x, 1), round(SIDE - MARGIN - inner * y, 1)

    parts = []
    for tick in (0.0, 0.5, 1.0):
        (left, low), (right, _) = at(0, tick), at(1, tick)
        parts.append(f'<line class="grid" x1="{left}" y1="{low}" x2="{right}" y2="{low}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{low + 4}" text-anchor="end">{tick:g}</text>')
        parts.append(f'<text class="tick" x="{at(tick, 0)[0]}" y="{SIDE - MARGIN + 16}" text-anchor="middle">{tick:g}</text>')
    (x0, y0), (x1, y1) = at(0, 0), at(1, 1)
    parts.append(f'<line class="guide" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}"/>')
    places = [at(p["predicted"], p["value"]) for p in points]
    parts.append('<polyline class="calibration" points="' + " ".join(f"{x},{y}" for x, y in places) + '"/>')
    for point, (x, y) in zip(points, places, strict=True):
        if point["interval"]:
            low, high = (at(0, value)[1] for value in point["interval"])
            parts.append(f'<line class="calibration" x1="{x}" y1="{low}" x2="{x}" y2="{high}"/>')
        parts.append(f'<circle class="calibration-point" cx="{x}" cy="{y}" r="3.5"/>')
    return f'<svg viewBox="0 0 {SIDE} {SIDE}" aria-hidden="true">{"".join(parts)}</svg>'
