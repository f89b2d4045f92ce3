"""Several algorithms side by side on the same settings and seeds: a table with intervals, and curves."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpdm.choices import AGGREGATES, ALGORITHMS, METRICS
from fedpdm.config import Config, load_config
from fedpdm.data.encoders import with_encoder_pinned
from fedpdm.data.schema import read_schema
from fedpdm.errors import ConfigError
from fedpdm.participation import fair_share
from fedpdm.privacy.accounting import epsilon_of, noise_multiplier_for
from fedpdm.privacy.plan import unit_releases
from fedpdm.runs.sweep import Result, figure_keys, run_sweep
from fedpdm.studies.drawing import band, require_drawing, save, write_csv
from fedpdm.studies.progress import CellProgress
from fedpdm.studies.statistics import t_interval

__all__ = ["Comparison", "all_algorithms", "compare", "comparison_configs", "epsilon_so_far", "table_lines"]

POINTS = 20  # figures per curve, unless the settings say otherwise
TITLES = {"accuracy": "accuracy", "loss": "test loss"}  # of classes; of a number or a time
SHOWN = ("auc", "balanced_accuracy", "r2", "mae", "concordance")  # figures of the printed table, if the label has them


class Comparison(NamedTuple):
    """Rows of the table, one per algorithm, and how many runs there were."""

    rows: list[dict[str, Any]]
    runs: int


def all_algorithms() -> list[str]:
    """List every algorithm; the default one is last, so that its curve is drawn above the others.

    Returns
    -------
    list of str
        Their names.
    """
    first = Config().algorithm.name
    return [*(name for name in ALGORITHMS if name != first), first]


def compare(
    source: str,
    algorithms: Sequence[str],
    seeds: int,
    folder: Path,
    settings: Sequence[str] = (),
    show_progress: bool = True,
) -> Comparison:
    """Run the same settings with several algorithms and seeds; write compare.csv and the curves.

    Finished runs are stored in cells.jsonl in the folder and not run again.

    Parameters
    ----------
    source : str
        A TOML file, or the name of a preset.
    algorithms : sequence of str
        Names of the algorithms.
    seeds : int
        Number of seeds, from 0.
    folder : Path
        Folder for the results; it is created.
    settings : sequence of str
        Changes KEY=VALUE.
    show_progress : bool
        Show progress on stderr.

    Returns
    -------
    Comparison
        The table, and the number of runs.
    """
    if seeds < 1:
        raise ConfigError(f"Expected --seeds {seeds} to be at least 1; an interval needs 2.")
    require_drawing()
    chosen = comparison_configs(source, algorithms, settings)
    configs = [config.model_copy(update={"seed": seed}) for config in chosen.values() for seed in range(seeds)]
    with CellProgress(configs, show_progress) as progress:

        def on_result(done: int, total: int, config: Config, result: Result) -> None:
            progress.step(config, f"{config.algorithm.name} seed {config.seed}: {result.get('last', 'diverged')}")

        results = run_sweep(configs, folder / "cells.jsonl", on_result)
    table = {name: results[i * seeds : (i + 1) * seeds] for i, name in enumerate(chosen)}
    keys = _keys(results)
    rows = [_row(name, chosen[name], table[name], keys) for name in chosen]
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(rows, folder / "compare.csv")
    _draw(chosen, table, folder / "compare", keys[0])
    return Comparison(rows, len(configs))


def comparison_configs(source: str, algorithms: Sequence[str], settings: Sequence[str] = ()) -> dict[str, Config]:
    """Make the settings of every algorithm, with times of measurement for curves unless the settings give them.

    Parameters
    ----------
    source : str
        A TOML file, or the name of a preset.
    algorithms : sequence of str
        Names of the algorithms.
    settings : sequence of str
        Changes KEY=VALUE.

    Returns
    -------
    dict of str to Config
        The settings by algorithm.
    """
    unknown = [name for name in algorithms if name not in ALGORITHMS]
    if unknown or not algorithms:
        given = ", ".join(map(repr, unknown)) or "no name"
        raise ConfigError(f"Unknown algorithm {given} in --algorithms: choose from {','.join(all_algorithms())}.")
    config = load_config(source, settings)
    total, own = config.rounds.total, []
    if "evaluate_every" not in config.metrics.model_fields_set:
        own.append(f"metrics.evaluate_every={max(1, total // POINTS)}")
    if "diagnose_every" not in config.metrics.model_fields_set:
        own.append(f"metrics.diagnose_every={total}")  # it reads all training data, and no curve shows it
    chosen = {name: load_config(source, [*settings, *own, f"algorithm.name={name}"]) for name in dict.fromkeys(algorithms)}
    return {name: with_encoder_pinned(config) for name, config in chosen.items()}  # finished runs are found by their settings


def epsilon_so_far(config: Config, rounds: int) -> float:
    """Compute the epsilon that a client with an even share of participations has spent after some rounds.

    Parameters
    ----------
    config : Config
        Settings with the sound mechanism.
    rounds : int
        Number of rounds so far.

    Returns
    -------
    float
        Epsilon, at the delta and in the relation of the settings.
    """
    p, r = config.privacy, config.rounds

    def share(rounds: int) -> int:
        participants = r.participants or config.data.clients
        return fair_share(rounds=rounds, clients=config.data.clients, participants=participants, all_first=r.all_first)

    most = p.participations or share(r.total)
    releases = (config.local.steps if p.mode == "every-step" else 1) * unit_releases(p.clients_per_unit, p.trust == "cohorts")
    noise = noise_multiplier_for(p.epsilon or math.inf, p.delta, most * releases, p.relation)
    return epsilon_of(noise, min(share(rounds), most) * releases, p.delta, p.relation)


def _keys(results: Sequence[Result]) -> list[str]:
    """The curve of these results ("accuracy" or "loss"), then their other figures."""
    known = next((r for r in results if "diverged" not in r), {})
    if "loss" not in known:
        return ["accuracy", *figure_keys()]
    every = [*figure_keys("number"), *figure_keys("time")]
    return ["loss", *(key for key in every if known.get(key) is not None)]


def _row(name: str, config: Config, results: Sequence[Result], keys: Sequence[str]) -> dict[str, Any]:
    kept = [r for r in results if "diverged" not in r]
    curve, *others = keys
    row: dict[str, Any] = {"algorithm": name, "seeds": len(results), "diverged": len(results) - len(kept)}
    row |= dict.fromkeys((curve, "low", "high", "averaged", *others, "nonzero_fraction"))
    row |= dict.fromkeys(("uplink_bytes", "downlink_bytes", "seconds"))
    if kept:
        interval = t_interval([r["last"] for r in kept])
        digits = 5 if curve == "accuracy" else 8
        row[curve] = round(interval.mean, digits)
        if len(kept) > 1:
            row |= {"low": round(interval.low, digits), "high": round(interval.high, digits)}
        for key in ("averaged", "nonzero_fraction", "seconds"):
            row[key] = round(float(np.mean([r[key] for r in kept])), digits)
        for key in others:
            found = [r[key] for r in kept if r.get(key) is not None]
            row[key] = round(float(np.mean(found)), 5) if found else None
        for key in ("uplink_bytes", "downlink_bytes"):
            row[key] = round(float(np.mean([r[key][-1] for r in kept])))
    row |= {"penalty": f"{config.problem.penalty} by {config.problem.penalty_by}"} | _privacy(config)
    if config.attack.kind != "none":
        row |= {"attackers": config.attack.clients, "attack": config.attack.kind, "aggregate": config.algorithm.aggregate}
    return row


def _privacy(config: Config) -> dict[str, Any]:
    p = config.privacy
    if p.mechanism == "none":
        return {"mechanism": "none", "epsilon": None, "delta": None, "relation": None, "unit": None}
    return {"mechanism": p.mechanism, "epsilon": p.epsilon, "delta": p.delta, "relation": p.relation, "unit": _unit(config)}


def _unit(config: Config) -> str:
    """Return what the guarantee is for, in words."""
    if config.privacy.unit == "client":
        return "all examples of one client"
    column, file = config.data.unit_column, config.data.schema_file
    column = column or (read_schema(file).unit_column if file else None)
    return f"all rows of one {column}" if column else "one example"


def table_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Format a comparison as a text table; the last lines state the guarantee, and who attacked.

    Parameters
    ----------
    rows : sequence of dict
        The rows of a `Comparison`.

    Returns
    -------
    list of str
        The lines.
    """
    curve = "loss" if "loss" in rows[0] else "accuracy"
    shown = [METRICS.row(key.replace("_", "-")) for key in SHOWN if key in rows[0]]
    titles = "".join(f"{row.title if len(row.title) < 12 else row.key.partition('_')[0]:>13}" for row in shown)
    head = f"{'algorithm':10}{f'{TITLES[curve]}, 95 % interval':>27}{'averaged':>10}{titles}{'non-zeros':>11}"
    lines = [head + f"{'MB up':>9}{'MB down':>9}{'seconds':>9}"]
    for row in rows:
        if row[curve] is None:
            lines.append(f"{row['algorithm']:10}{'all runs diverged: lower local.step_size':>40}")
            continue
        places = 4 if curve == "accuracy" else 6
        interval = f"{row[curve]:.{places}f}" + (f" ± {row['high'] - row[curve]:.{places}f}" if row["high"] is not None else "")
        figures = "".join(f"{_figure(row, metric.key):>13}" for metric in shown)
        lines.append(
            f"{row['algorithm']:10}{interval:>27}{row['averaged']:10.{places}f}{figures}{row['nonzero_fraction']:11.1%}"
            f"{row['uplink_bytes'] / 1e6:9.2f}{row['downlink_bytes'] / 1e6:9.2f}{row['seconds']:9.2f}"
            + (f"  ({row['diverged']} of {row['seeds']} runs diverged)" if row["diverged"] else "")
        )
    first = rows[0]
    lines.append(f"penalty: {first['penalty']}")
    if first["mechanism"] != "none":
        worth = "" if first["mechanism"] == "sound" else ", as the paper counts: nominal, not a guarantee"
        lines.append(
            f"epsilon = {first['epsilon']:g} at delta = {first['delta']:g} ({first['relation']} of {first['unit']}){worth}"
        )
    if "attackers" in first:
        by = AGGREGATES.row(first["aggregate"]).title
        who = f"{first['attackers']} of the clients were simulated attackers ({first['attack']})"
        lines.append(f"{who}; the server combined messages by the {by}")
    return lines


def _figure(row: dict[str, Any], key: str) -> str:
    return "–" if row.get(key) is None else f"{row[key]:.4f}"


def _draw(configs: dict[str, Config], table: dict[str, list[Result]], path: Path, curve: str) -> None:
    """Accuracy or loss against rounds, against bytes, and, under the sound mechanism, against the epsilon spent so far."""
    from matplotlib.figure import Figure

    any_config = next(iter(configs.values()))
    sound = any_config.privacy.mechanism == "sound"
    figure = Figure(figsize=(5 * (2 + sound), 4), layout="constrained")
    axes = figure.subplots(1, 2 + sound)
    for i, (name, results) in enumerate(table.items()):
        kept = [r for r in results if "diverged" not in r]
        if not kept:
            continue
        curves, rounds = [r[curve] for r in kept], kept[0]["round"]
        totals = [np.add(r["uplink_bytes"], r["downlink_bytes"]) for r in kept]
        band(axes[0], rounds, curves, name, f"C{i}")
        band(axes[1], list(np.mean(totals, axis=0) / 1e6), curves, name, f"C{i}")
        if sound:
            band(axes[2], [epsilon_so_far(configs[name], t) for t in rounds], curves, name, f"C{i}")
    spent = f"epsilon spent by an even share (delta = {any_config.privacy.delta:g}, {any_config.privacy.relation})"
    for axis, label in zip(axes, ("communication round", "MB, both directions", spent), strict=False):
        axis.set(xlabel=label, ylabel=f"test {curve}")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    axes[0].set_title("mean, band from the smallest to the largest seed", fontsize="small")
    save(figure, path)
