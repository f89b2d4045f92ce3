"""Draw curves with bands, and write tables as files."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpdm.errors import require_extra

__all__ = ["require_drawing", "band", "save", "write_csv"]


def require_drawing() -> None:
    """Check that figures can be drawn, before a study starts."""
    require_extra("matplotlib", "figures", "A study with figures")


def band(axis: Any, x: Sequence[float], curves: Sequence[Sequence[float]], label: str, color: str, marker: str = "") -> None:
    """Draw the mean of curves as a line, in a band from the smallest to the largest value.

    Parameters
    ----------
    axis : matplotlib Axes
        The axes to draw on.
    x : sequence of float
        Positions.
    curves : sequence of sequences
        One curve per seed.
    label, color, marker : str
        As in matplotlib.
    """
    values = np.array(curves)
    axis.plot(x, values.mean(axis=0), color=color, marker=marker or None, markersize=4, label=label)
    axis.fill_between(x, values.min(axis=0), values.max(axis=0), color=color, alpha=0.15, linewidth=0)


def save(figure: Any, path: Path) -> None:
    """Write PATH.png and PATH.svg without a date, so that the same numbers give the same files.

    Parameters
    ----------
    figure : matplotlib Figure
        The figure.
    path : Path
        The path without its ending.
    """
    import matplotlib as mpl

    figure.savefig(path.with_suffix(".png"), dpi=110)
    with mpl.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as a CSV file.

    Parameters
    ----------
    rows : sequence of mappings
        They all have the same keys.
    path : Path
        The file.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["panel"])
        writer.writeheader()
        writer.writerows(rows)
