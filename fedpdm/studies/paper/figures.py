"""The panels of the paper's figures, read from panels/*.toml, and the settings of each of their points."""

import functools
import tomllib
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

from fedpdm.config import Config, load_config
from fedpdm.errors import ConfigError
from fedpdm.studies.compare import POINTS

__all__ = ["FIGURES", "Curve", "Sweep", "Panel", "Key", "Scale", "panels", "chosen_figures", "chosen_panels", "cells"]

FIGURES = ("fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8")
QUICK_SHARE = 10  # --quick runs one round in ten
QUICK_START = "rounds.all_first=false"  # a first round of all clients needs its own program, which takes longest to compile
SELDOM = "metrics.diagnose_every=1000"  # objective and stationarity read all training data, and no figure shows them

# Panel, curve and, where the x axis is a setting, its value
Key = tuple[str, str, float | None]


class Curve(NamedTuple):
    """One curve of a panel: its label, and the settings that make it."""

    label: str
    settings: tuple[str, ...]
    quick: bool  # whether --quick runs it too


class Sweep(NamedTuple):
    """The setting that is the x axis of a panel."""

    key: str
    values: tuple[float, ...]
    quick: tuple[float, ...]


class Panel(NamedTuple):
    """One panel of a figure: its preset, settings and curves."""

    figure: str
    panel: str
    title: str
    preset: str
    x: str  # "round", "uplink ratio" or "downlink ratio"
    settings: tuple[str, ...]
    curves: tuple[Curve, ...]
    sweep: Sweep | None
    remedies: tuple[Curve, ...] = ()  # other choices for FedPDM, run beside the figure but not drawn in it

    @property
    def name(self) -> str:
        return self.figure + self.panel


class Scale(NamedTuple):
    """How much of the study is run.

    Attributes
    ----------
    quick
        Only the curves and points marked so, a tenth of the rounds, and no first round of all clients.
    preset, rounds
        Replace the preset and the number of rounds of every cell: to try the machinery on small data.
    settings
        Change these settings of every cell: another reading of the paper.
    data
        Only the panels of this data set, "adult" or "mnist"; None: all.
    """

    quick: bool = False
    preset: str | None = None
    rounds: int | None = None
    settings: tuple[str, ...] = ()
    data: str | None = None


@functools.cache
def panels() -> tuple[Panel, ...]:
    """Return all panels, in the order of the paper.

    Returns
    -------
    tuple of Panel
        The panels.
    """
    folder = resources.files("fedpdm.studies.paper") / "panels"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return tuple(_panel(tomllib.loads(file.read_text(encoding="utf-8"))) for file in files)


def chosen_panels(figures: Sequence[str], scale: Scale) -> list[Panel]:
    """Return the panels of figures that are run.

    Parameters
    ----------
    figures : sequence of str
        Names of figures.
    scale : Scale
        How much of the study to run.

    Returns
    -------
    list of Panel
        The panels.
    """
    known = sorted({panel.preset.removeprefix("paper-") for panel in panels()})
    if scale.data is not None and scale.data not in known:
        raise ConfigError(f"Unknown data set {scale.data!r} of the paper: choose one of {', '.join(known)}.")
    return [p for p in panels() if p.figure in figures and scale.data in (None, p.preset.removeprefix("paper-"))]


def chosen_figures(name: str) -> tuple[str, ...]:
    """Return the figures of a name.

    Parameters
    ----------
    name : str
        "fig2" to "fig8", or "all".

    Returns
    -------
    tuple of str
        Names of figures.
    """
    if name == "all":
        return FIGURES
    if name not in FIGURES:
        raise ConfigError(
            f"Unknown figure {name!r}: choose one of {', '.join(FIGURES)}, all, certified, heterogeneity, readings."
        )
    return (name,)


def cells(panel: Panel, scale: Scale = Scale()) -> dict[Key, Config]:
    """Make the settings of every point of a panel, for seed 0.

    Parameters
    ----------
    panel : Panel
        The panel.
    scale : Scale
        How much of the study to run.

    Returns
    -------
    dict of Key to Config
        The settings by point.
    """
    points: tuple[float | None, ...] = (None,)
    if panel.sweep:
        points = panel.sweep.quick if scale.quick else panel.sweep.values
    result = {}
    for curve in (*panel.curves, *panel.remedies):
        if scale.quick and not curve.quick:
            continue
        for value in points:
            at = [f"{panel.sweep.key}={value}"] if panel.sweep else []
            result[panel.name, curve.label, value] = _config(panel, [*panel.settings, *curve.settings, *at], scale)
    return result


def _config(panel: Panel, settings: list[str], scale: Scale) -> Config:
    preset = scale.preset or panel.preset
    rounds = load_config(preset, settings).rounds.total
    rounds = scale.rounds or (max(2, rounds // QUICK_SHARE) if scale.quick else rounds)
    own = [f"rounds.total={rounds}", f"metrics.evaluate_every={max(1, rounds // POINTS)}", SELDOM]
    if scale.quick:
        own.append(QUICK_START)
    config = load_config(preset, [*settings, *own, *scale.settings])
    if config.compression.uplink == 1:  # nothing is selected: one run serves every kind
        config = config.model_copy(update={"compression": config.compression.model_copy(update={"kind": "topk"})})
    return config


def _panel(values: dict[str, Any]) -> Panel:
    curves, remedies = (
        tuple(Curve(c["label"], tuple(c["settings"]), c.get("quick", False)) for c in values.pop(key, ()))
        for key in ("curves", "remedies")
    )
    sweep = values.pop("sweep", None)
    if sweep:
        sweep = Sweep(sweep["key"], tuple(sweep["values"]), tuple(sweep["quick"]))
    settings = tuple(values.pop("settings"))
    return Panel(**values, settings=settings, curves=curves, sweep=sweep, remedies=remedies)
