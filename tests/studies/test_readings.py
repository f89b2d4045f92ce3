"""The multiverse: its design is the committed one, its settings mean what the factors say, and its answers are right."""

import numpy as np
import pytest

from fedpdm.config import digest
from fedpdm.privacy.published import paper_sensitivity
from fedpdm.studies.paper.figures import cells as panel_cells
from fedpdm.studies.paper.multiverse.analysis import (
    HEADLINES,
    best_specification,
    chance_limit,
    changes,
    importance,
    nearest_that_moves,
)
from fedpdm.studies.paper.multiverse.cells import PANELS, reading_cells
from fedpdm.studies.paper.multiverse.design import SIZE, imbalance, make_design, read_design
from fedpdm.studies.paper.multiverse.factors import FACTORS, our_reading
from fedpdm.studies.paper.multiverse.study import repeat_of, specifications_of, write_readings
from fedpdm.studies.statistics import t_interval

DESIGN = read_design()


def test_the_committed_design_follows_its_rule():
    assert make_design() == DESIGN
    assert len(DESIGN) == SIZE
    assert DESIGN[0] == our_reading()


def test_levels_are_balanced_and_factors_are_apart():
    columns = {factor.name: [row[factor.name] for row in DESIGN] for factor in FACTORS}
    for factor in FACTORS:
        counts = [columns[factor.name].count(level.name) for level in factor.levels]
        assert sum(counts) == SIZE
        assert max(counts) - min(counts) <= 3
    names = list(columns)
    assert max(imbalance(columns[a], columns[b]) for i, a in enumerate(names) for b in names[:i]) < 0.05


def test_our_reading_is_figure_7():
    ours = reading_cells(our_reading())
    for panel in PANELS:
        for (_, label, _), config in panel_cells(panel).items():
            if (panel.name, label) in ours:
                never = config.metrics.model_copy(update={"diagnose_every": 0})
                assert digest(ours[panel.name, label]) == digest(config.model_copy(update={"metrics": never}))


def test_a_reading_changes_what_it_says():
    other = our_reading() | {"server": "cached", "c0": "2", "noise": "that of FedPDM", "steps": "30", "clip": "0.3"}
    found, ours = reading_cells(other), reading_cells(our_reading())
    pdm, average = found["fig7d", "FedPDM"], found["fig7d", "FedAvg"]
    assert (pdm.algorithm.server_rule, pdm.local.steps, pdm.privacy.clip) == ("cached", 30, 0.3)
    assert pdm.privacy.epsilon == pytest.approx(10 / 2)
    step = 0.04 / (1 + 50) ** 0.5  # of the middle round, where both have the same noise
    half = paper_sensitivity(1e-12, step, 30, 0.3) / 2  # FedAvg sends x, without a proximal term
    assert half / average.privacy.epsilon == pytest.approx(paper_sensitivity(10.0, step, 30, 0.3) / pdm.privacy.epsilon)
    only_noise = our_reading() | {"c0": "2", "noise": "that of FedPDM", "clip": "0.3"}
    for key, config in reading_cells(only_noise).items():
        assert (digest(config) == digest(ours[key])) == (key[0] in ("fig7a", "fig7c"))


def test_every_level_has_valid_settings():
    left = {(factor.name, level.name) for factor in FACTORS for level in factor.levels}
    for reading in DESIGN:
        if new := left & set(reading.items()):
            left -= new
            assert len(reading_cells(reading)) == 5 * len(PANELS)
    assert not left


def made_up() -> list:
    """Readings in which the cached rule lifts FedPDM by a tenth, and features of norm 1 let Adult move."""
    random, found = np.random.default_rng(0), []
    for number, reading in enumerate(DESIGN):
        cells = {}
        for panel in PANELS:
            moves = panel.name != "fig7a" or reading["features"] == "norm 1"
            for curve in panel.curves:
                lift = 0.1 * (reading["server"] == "cached") - 0.05 if curve.label == "FedPDM" else 0.0
                end = 0.7 + lift + 0.002 * random.standard_normal()
                cells[panel.name, curve.label] = [{"last": end, "averaged": end, "accuracy": [0.5 if moves else end, end]}]
        found += specifications_of(number, reading, cells)
    return found


def test_the_deciding_factor_and_the_best_reading_are_found(tmp_path):
    found = made_up()
    entries = write_readings(found, tmp_path, seeds=1, quick=False)
    names = {"readings.csv", "readings.json", "readings.md", "readings.png", "readings.svg"}
    assert {path.name for path in tmp_path.iterdir()} == names
    cached = np.mean([one.levels["server"] == "cached" for one in found])
    first = {entry["id"]: entry for entry in entries}["fig7c-first"]
    assert first["effect"] == pytest.approx(cached, abs=1e-3)
    assert first["decides"] == "server"
    assert importance(HEADLINES[0], found)["server"] > 0.95
    assert best_specification(found).levels["server"] == "cached"
    nearest = nearest_that_moves(found, "fig7a")
    assert nearest is not None
    assert changes(nearest)["features"] == "norm 1"
    page = (tmp_path / "readings.md").read_text()
    assert f"| {HEADLINES[2].text} | {cached:.0%} |" in page
    assert "## The reading under which the claims hold best" in page


def test_other_seeds_take_back_what_was_chance(tmp_path):
    """The best of many is repeated: its gap has the baseline that is best with the other seeds, and an interval."""
    found, reading = made_up(), read_design()[7]
    cells = {(panel.name, curve.label): [{"last": 0.7, "averaged": 0.6}] * 3 for panel in PANELS for curve in panel.curves}
    cells["fig7a", "FedPDM"] = [{"last": value, "averaged": 0.9} for value in (0.6, 0.7, 0.8)]
    cells["fig7a", "SCAFFOLD"] = [{"last": 0.75, "averaged": 0.6}] * 3
    chosen = next(one for one in found if (one.number, one.levels["tested"]) == (7, "last"))
    repeat = repeat_of(chosen, reading, cells)
    assert repeat.seeds == 3
    assert repeat.gaps["fig7a"] == pytest.approx(t_interval([-0.15, -0.05, 0.05]))
    assert repeat.gaps["fig7b"] == pytest.approx((0.0, 0.0, 0.0))
    assert repeat.specification.accuracies["fig7a", "FedPDM"] == pytest.approx(0.7)
    write_readings(found, tmp_path, seeds=1, quick=False, repeat=repeat)
    assert "- Adult, without DP: -0.0500 (-0.2984 to +0.1984)" in (tmp_path / "readings.md").read_text()


def test_no_factor_decides_where_values_are_random(tmp_path):
    """The control of `chance_limit`: some factor always explains most, and is not named if chance explains as much."""
    random, found = np.random.default_rng(11), made_up()
    named = 0
    for _ in range(20):
        noise = [{at: float(random.normal()) for at in one.accuracies} for one in found]
        shuffled = [one._replace(accuracies=own) for one, own in zip(found, noise, strict=True)]
        weights = importance(HEADLINES[0], shuffled)
        named += max(weights.values()) > chance_limit(HEADLINES[0], shuffled, draws=500)
    assert named <= 1, "one in two hundred is expected, so that ten claims together are wrong in one of twenty cases"
    assert importance(HEADLINES[0], found)["server"] > 5 * chance_limit(HEADLINES[0], found)


def test_few_readings_name_no_deciding_factor(tmp_path):
    """A fit of all factors to 12 readings passes through all of them, and would name the model that is tested."""
    entries = write_readings(made_up()[:24], tmp_path, seeds=1, quick=False)
    assert {entry["decides"] for entry in entries} == {None}
    page = (tmp_path / "readings.md").read_text()
    assert "The first 12 of 200 readings" in page
    assert "too few readings to tell" in page
    assert "| server rule | participants " in page
