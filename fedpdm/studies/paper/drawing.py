"""The figures in the paper's layout, and their numbers."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.studies.drawing import band, save, write_csv
from fedpdm.studies.paper.effects import Table
from fedpdm.studies.paper.figures import Panel, Scale
from fedpdm.studies.paper.readings import readings
from fedpdm.studies.statistics import t_interval

__all__ = ["draw_figure", "write_numbers"]

MARKERS = "osv^Dx*"
Results = Sequence[Mapping[str, Any]]


def draw_figure(panels: Sequence[Panel], table: Table, scale: Scale, folder: Path) -> None:
    """Draw one figure of the paper as PNG and SVG, with the readings that it depends on below.

    Parameters
    ----------
    panels : sequence of Panel
        The panels of one figure.
    table : Table
        Results of every point, one per seed.
    scale : Scale
        How much of the study was run, and which settings were changed.
    folder : Path
        Folder for the results; it is created.
    """
    from matplotlib.figure import Figure

    rows = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(10, 3.6 * rows + 1.4), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False).flatten()
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis, panel in zip(axes, panels, strict=False):
        if panel.sweep:
            _draw_sweep(axis, panel, table)
        else:
            _draw_rounds(axis, panel, table)
        axis.set_title(f"({panel.panel}) {panel.title}", fontsize="medium")
        axis.grid(alpha=0.3)
    name = panels[0].figure
    counts = sorted({len(results) for key, results in table.items() if key[0] in {panel.name for panel in panels}})
    seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    seen = "mean" if seeds == "1" else f"mean over {seeds} seeds, band from the smallest to the largest"
    changed = [f"CHANGED IN ALL RUNS: {', '.join(scale.settings)}. All else is as follows."] if scale.settings else []
    text = " ".join([f"Accuracy: {seen}.", *changed, *readings(name, scale.quick)])
    figure.supxlabel("\n".join(textwrap.wrap(text, 185)), fontsize=7, x=0.01, ha="left")
    save(figure, folder / name)


def _draw_rounds(axis: Any, panel: Panel, table: Table) -> None:
    for i, curve in enumerate(panel.curves):
        results = [r for r in table.get((panel.name, curve.label, None), ()) if "diverged" not in r]
        if results:
            band(axis, results[0]["round"], [r["accuracy"] for r in results], curve.label, f"C{i}", MARKERS[i])
    axis.set(xlabel="communication round", ylabel="test accuracy")
    axis.legend(fontsize="small")


def _draw_sweep(axis: Any, panel: Panel, table: Table) -> None:
    """Accuracy against a ratio; with the cost on a second axis where the ratio is the uplink's."""
    costs = axis.twinx() if panel.x == "uplink ratio" else None
    for i, curve in enumerate(panel.curves):
        points = {
            value: kept
            for (name, label, value), results in table.items()
            if (name, label) == (panel.name, curve.label) and (kept := [r for r in results if "diverged" not in r])
        }
        fewest = min((len(results) for results in points.values()), default=0)
        if not fewest:
            continue
        columns = np.array([[r["last"] for r in results[:fewest]] for results in points.values()])
        x = [float(value or 0) for value in points]
        band(axis, x, list(columns.T), f"{curve.label}, accuracy", f"C{i}", MARKERS[i])
        if costs:
            megabytes = [np.mean([r["uplink_bytes"][-1] for r in results]) / 1e6 for results in points.values()]
            costs.plot(
                x, megabytes, color=f"C{i}", linestyle=":", marker=MARKERS[i], markersize=3, label=f"{curve.label}, cost"
            )
    symbol = {"uplink ratio": "alpha_U", "downlink ratio": "alpha_D"}[panel.x]
    axis.set(xlabel=f"{panel.x} {symbol}", ylabel="test accuracy")
    axis.legend(fontsize="small", loc="best")
    if costs:
        costs.set(ylabel="uplink in MB (dotted)", ylim=(0, None))


def write_numbers(panels: Sequence[Panel], table: Table, path: Path) -> None:
    """Write the numbers of a figure: one line per panel, curve and x.

    Parameters
    ----------
    panels : sequence of Panel
        The panels of one figure.
    table : Table
        Results of every point, one per seed.
    path : Path
        The CSV file.
    """
    rows: list[dict[str, Any]] = []
    for panel in panels:
        for (name, label, value), results in table.items():
            kept = [r for r in results if "diverged" not in r]
            if name != panel.name or not kept:
                continue
            start = {"panel": name, "curve": label, "axis": panel.x}
            last = len(kept[0]["round"]) - 1
            for i in range(last + 1) if value is None else (last,):
                x = kept[0]["round"][i] if value is None else value
                rows.append(start | {"x": x} | _numbers(kept, i, i == last))
    write_csv(rows, path)


def _numbers(results: Results, i: int, at_the_end: bool) -> dict[str, Any]:
    accuracies = [r["accuracy"][i] for r in results]
    interval = t_interval(accuracies)
    certain = len(accuracies) > 1
    return {
        "seeds": len(accuracies),
        "accuracy": round(interval.mean, 5),
        "low": round(interval.low, 5) if certain else "",
        "high": round(interval.high, 5) if certain else "",
        "smallest": min(accuracies),
        "largest": max(accuracies),
        "uplink_bytes": round(np.mean([r["uplink_bytes"][i] for r in results])),
        "downlink_bytes": round(np.mean([r["downlink_bytes"][i] for r in results])),
        "nonzero_fraction": round(float(np.mean([r["nonzero_fraction"] for r in results])), 5) if at_the_end else "",
    }
