"""The specification curve: FedPDM's gap in every reading, sorted, above the levels that make it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpdm.studies.drawing import save
from fedpdm.studies.paper.multiverse.analysis import Specification, gap
from fedpdm.studies.paper.multiverse.cells import PANELS
from fedpdm.studies.sequential import MARGIN

__all__ = ["draw_curve"]


def draw_curve(specifications: Sequence[Specification], path: Path) -> None:
    """Draw the specification curve of every panel as PNG and SVG.

    Parameters
    ----------
    specifications : sequence of Specification
        The specifications.
    path : Path
        The files without their suffix.
    """
    from matplotlib.figure import Figure

    levels = [(name, level) for name in specifications[0].levels for level in _levels(specifications, name)]
    figure = Figure(figsize=(5 * len(PANELS), 4 + 0.2 * len(levels)), layout="constrained")
    axes = figure.subplots(2, len(PANELS), sharex=True, squeeze=False, height_ratios=[1, 0.05 * len(levels)])
    for j, panel in enumerate(PANELS):
        ordered = sorted(specifications, key=lambda one: gap(one.accuracies, panel.name))
        _draw_gaps(axes[0][j], [gap(one.accuracies, panel.name) for one in ordered], [one.number == 0 for one in ordered])
        axes[0][j].set_title(panel.title, fontsize="medium")
        for i, (name, level) in enumerate(levels):
            x = [k for k, one in enumerate(ordered) if one.levels[name] == level]
            axes[1][j].plot(x, [i] * len(x), "|", color="C0", markersize=4)
        axes[1][j].set(xlabel="readings, sorted", yticks=range(len(levels)))
        axes[1][j].set_yticklabels([f"{name}: {level}" for name, level in levels] if j == 0 else [], fontsize=7)
        axes[1][j].invert_yaxis()
    axes[0][0].set_ylabel("FedPDM minus the best baseline")
    save(figure, path)


def _draw_gaps(axis: Any, gaps: Sequence[float], ours: Sequence[bool]) -> None:
    axis.axhspan(-MARGIN, MARGIN, color="0.85")
    axis.axhline(0, color="0.4", linewidth=0.8)
    axis.plot(range(len(gaps)), gaps, ".", color="C0", markersize=3)
    x = [k for k, own in enumerate(ours) if own]
    axis.plot(x, [gaps[k] for k in x], "D", color="C3", markersize=5, label="our reading (last model, tail average)")
    axis.legend(fontsize="x-small", loc="lower right")
    axis.grid(alpha=0.3)


def _levels(specifications: Sequence[Specification], name: str) -> list[str]:
    return list(dict.fromkeys(one.levels[name] for one in specifications))
