"""The test figures of a run that predicts numbers: a table with intervals, predicted against true values, residuals."""

from typing import Any, NamedTuple

from fedpdm.choices import METRICS
from fedpdm.report.reading import Run

__all__ = ["NumbersView", "view_numbers"]

SIDE, MARGIN = 260, 44  # of a drawing, in pixels


class NumbersView(NamedTuple):
    """What to show of a run's test figures.

    Attributes
    ----------
    figures
        Title, value, interval, the averaged model's value, and what it means.
    residuals
        Levels and quantiles of truth minus prediction.
    calibration, points
        Drawings (SVG) with their words: means of tenths of the rows, and single rows. None where there are none.
    """

    label: str
    rows: int
    figures: list[dict[str, str]]
    residuals: list[tuple[str, str]]
    calibration: dict[str, str] | None
    points: dict[str, str] | None


def view_numbers(run: Run) -> NumbersView | None:
    """The test figures of a run; None if it has none, or predicts classes.

    Parameters
    ----------
    run : Run
        The run, as it was read from its folder.

    Returns
    -------
    NumbersView or None
        What the page shows.
    """
    averaged = run.summary.get("metrics_averaged") or {}
    found = run.summary.get("metrics") or averaged  # a deployment's clients evaluate one model, the one that is released
    if not found or found.get("kind") not in ("number", "time"):
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
    residuals = [(f"{100 * level:g} %", f"{value:.4g}") for level, value in found.get("residuals", [])]
    tenths = [(point["predicted"], point["value"], point["interval"]) for point in found.get("calibration", [])]
    rows: list[tuple[float, float, list[float] | None]] = [(x, y, None) for x, y in found.get("points", [])]
    spelled = "; ".join(f"predicted {x:.4g}, true mean {y:.4g}" for x, y, _ in tenths)
    return NumbersView(
        run.class_names[0],
        round(found["rows"]),
        figures,
        residuals,
        {"svg": _drawing(tenths, joined=True), "words": f"Calibration: {spelled}."} if tenths else None,
        {"svg": _drawing(rows), "words": f"{len(rows)} rows, predicted against true values."} if rows else None,
    )


def _text(entry: dict[str, Any]) -> str:
    value = entry.get("value")
    return "–" if value is None else f"{value:.4g}"


def _interval(entry: dict[str, Any]) -> str:
    return "–" if not entry["interval"] else "{:.4g} to {:.4g}".format(*entry["interval"])


def _drawing(points: list[tuple[float, float, list[float] | None]], joined: bool = False) -> str:
    """True values (up) against predictions (across), on one scale; numbers alone enter the text."""
    ends = [value for x, y, interval in points for value in (x, y, *(interval or ()))]
    low, high = min(ends), max(ends)
    span, inner = (high - low) or 1.0, SIDE - 2 * MARGIN

    def at(x: float, y: float) -> tuple[float, float]:
        return round(MARGIN + inner * (x - low) / span, 1), round(SIDE - MARGIN - inner * (y - low) / span, 1)

    parts = []
    for tick in (low, low + span / 2, high):
        (left, place), (right, _) = at(low, tick), at(high, tick)
        parts.append(f'<line class="grid" x1="{left}" y1="{place}" x2="{right}" y2="{place}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{place + 4}" text-anchor="end">{tick:.3g}</text>')
        across = at(tick, low)[0]
        parts.append(f'<text class="tick" x="{across}" y="{SIDE - MARGIN + 16}" text-anchor="middle">{tick:.3g}</text>')
    (x0, y0), (x1, y1) = at(low, low), at(high, high)
    parts.append(f'<line class="guide" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}"/>')
    places = [at(x, y) for x, y, _ in points]
    if joined:
        parts.append('<polyline class="calibration" points="' + " ".join(f"{x},{y}" for x, y in places) + '"/>')
    for (_, _, interval), (x, y) in zip(points, places, strict=True):
        if interval:
            bottom, top = (at(low, value)[1] for value in interval)
            parts.append(f'<line class="calibration" x1="{x}" y1="{bottom}" x2="{x}" y2="{top}"/>')
        parts.append(f'<circle class="calibration-point" cx="{x}" cy="{y}" r="{3.5 if joined else 2}"/>')
    return f'<svg viewBox="0 0 {SIDE} {SIDE}" aria-hidden="true">{"".join(parts)}</svg>'
