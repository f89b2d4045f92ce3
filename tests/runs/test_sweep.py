"""A sweep has the results of single runs, stores finished ones, and survives a crash."""

import json
import re

import pytest

from fedpdm.config import load_config
from fedpdm.data import hold_out, load_dataset
from fedpdm.data.prepare import build_federation
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.errors import ConfigError
from fedpdm.runs.sweep import run_sweep

SMALL = ["data.name=digits", "data.clients=10", "rounds.participants=4", "rounds.total=6", "metrics.diagnose_every=6"]


def configs(*settings):
    return [load_config("plain", [*SMALL, f"seed={seed}", *settings]) for seed in (0, 1)]


def test_results_are_those_of_single_runs_and_are_not_computed_twice(tmp_path):
    store, said = tmp_path / "new" / "cells.jsonl", []
    results = run_sweep(configs(), store, lambda done, total, config, result: said.append((done, total)))
    assert said == [(1, 2), (2, 2)]
    for config, result in zip(configs(), results, strict=True):
        simulation = build_simulation(config, build_federation(config, progress=False))
        rows = list(simulation.run())
        assert result["last"] == rows[-1]["test_accuracy"]
        assert result["accuracy"] == [row["test_accuracy"] for row in rows]
        assert result["uplink_bytes"][-1] == rows[-1]["uplink_bytes"]
    before = store.read_bytes()
    assert run_sweep(configs(), store) == results
    assert store.read_bytes() == before


def test_a_line_that_was_cut_off_or_changed_is_run_again(tmp_path):
    store = tmp_path / "cells.jsonl"
    results = run_sweep(configs(), store)
    whole = store.read_bytes()
    changed = re.sub(rb'"last": 0\.(\d)', lambda found: b'"last": 0.%d' % (9 - int(found[1])), whole, count=1)
    for damaged in (whole[:-40], changed, b"\xff\n[]\n" + b"[" * 100_000):
        store.write_bytes(damaged)
        assert [r["last"] for r in run_sweep(configs(), store)] == [r["last"] for r in results]
        good = [line for line in store.read_bytes().splitlines() if line.startswith(b"{") and line.endswith(b"}")]
        assert {json.loads(line)["seed"] for line in good} == {0, 1}


def test_a_run_that_diverges_is_said_and_does_not_stop_the_others(tmp_path):
    wild, tame = configs("local.step_size=1e30")[0], configs()[0]
    results = run_sweep([wild, tame], tmp_path / "cells.jsonl")
    assert "diverged" in results[0]
    assert results[1]["last"] > 0.5


def test_validation_examples_are_held_out_of_training_and_in_the_test_data_s_place():
    dataset = load_dataset("digits")
    split = hold_out(dataset, 300)
    assert len(split.test_labels) == 300
    assert len(split.labels) == len(dataset.labels) - 300
    rows = {row.tobytes() for row in dataset.test_features}
    assert not rows & {row.tobytes() for row in split.test_features}
    with pytest.raises(ConfigError, match=r"data\.validation"):
        hold_out(dataset, len(dataset.labels))
