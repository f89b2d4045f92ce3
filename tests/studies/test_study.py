"""`fedpdm compare` as a person uses it, and the numbers behind its table."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedpdm.config import load_config
from fedpdm.errors import ConfigError
from fedpdm.studies.compare import compare, comparison_configs, epsilon_so_far, table_lines
from fedpdm.studies.paper.verdicts import verdict_lines, write_study
from fedpdm.studies.statistics import Interval, t_interval, trend, verdict

SMALL = ["data.name=digits", "data.clients=10", "rounds.participants=4", "rounds.total=4"]
SOUND = ["rounds.sampling=cycle", "local.batch_size=0", "privacy.mechanism=sound", "privacy.epsilon=2.0"]


def fedpdm(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedpdm.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=cwd)


def test_compare_end_to_end_and_a_second_call_runs_nothing(tmp_path):
    sets = [part for setting in [*SMALL, *SOUND] for part in ("--set", setting)]
    arguments = ["compare", "plain", "--algorithms", "fedavg,fedpdm", "--seeds", "2", *sets, "--out", str(tmp_path)]
    done = fedpdm(*arguments)
    assert done.returncode == 0, done.stderr
    assert "4/4 cells" in done.stderr
    assert "epsilon = 2 at delta = 1e-05 (add-remove of one example)" in done.stdout
    cells = (tmp_path / "cells.jsonl").read_text()
    assert {f.name for f in tmp_path.iterdir()} == {"cells.jsonl", "compare.csv", "compare.png", "compare.svg"}
    again = fedpdm(*arguments, "--json", "--quiet")
    rows = json.loads(again.stdout)
    assert (tmp_path / "cells.jsonl").read_text() == cells
    assert again.stderr == ""
    accuracies = [json.loads(line)["last"] for line in cells.splitlines()][:2]
    assert rows[0]["algorithm"] == "fedavg"
    assert rows[0]["accuracy"] == pytest.approx(sum(accuracies) / 2, abs=1e-5)
    low, high = stats.t.interval(0.95, 1, sum(accuracies) / 2, stats.sem(accuracies))
    assert (rows[0]["low"], rows[0]["high"]) == pytest.approx((low, high), abs=1e-4)
    assert (rows[0]["mechanism"], rows[0]["epsilon"], rows[0]["relation"]) == ("sound", 2.0, "add-remove")


def test_algorithms_are_compared_on_a_number_and_on_a_time(tmp_path):
    """In one process: the command above is tested end to end."""
    rng = np.random.default_rng(0)
    columns = {"x": rng.random(300), "y": rng.exponential(3, 300).round(2), "seen": rng.integers(0, 2, 300)}
    table = tmp_path / "table.csv"
    table.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]))
    data = [f"data.name={json.dumps(str(table))}", "data.label=y", "data.clients=3", "data.partition=iid", "problem.loss=auto"]
    small = [*data, "rounds.participants=3", "rounds.total=3", "local.batch_size=0", "local.step_size=0.5"]
    found = compare("plain", ["fedavg", "fedpdm"], 1, tmp_path / "number", small, show_progress=False)
    assert found.rows[0]["loss"] > 0
    assert found.rows[0]["mae"] > 1
    assert "accuracy" not in found.rows[0]
    head, *lines = table_lines(found.rows)
    assert all(word in head for word in ("test loss, 95 % interval", "R2", "mae"))
    assert lines[0].startswith("fedavg")
    times = compare("plain", ["fedavg"], 1, tmp_path / "time", [*small, "data.event_column=seen"], show_progress=False)
    assert 0 <= times.rows[0]["concordance"] <= 1
    assert "Concordance" in table_lines(times.rows)[0]


def test_a_table_that_has_changed_is_compared_again(tmp_path):
    """In the same process too; a call on the same table runs nothing."""
    table, rng = tmp_path / "table.csv", np.random.default_rng(0)
    x, noise = rng.random(200), rng.random(200)

    def figures(labels) -> tuple[float, float]:
        table.write_text("x,y\n" + "".join(f"{a:.4f},{int(b)}\n" for a, b in zip(x, labels, strict=True)))
        data = [f"data.name={json.dumps(str(table))}", "data.label=y", "data.clients=2", "data.partition=iid"]
        small = [*data, "rounds.participants=2", "rounds.total=8", "local.batch_size=0", "local.step_size=2"]
        before = len(cells.read_text().splitlines()) if cells.exists() else 0
        found = compare("plain", ["fedavg"], 1, cells.parent, small, show_progress=False)
        return found.rows[0]["accuracy"], len(cells.read_text().splitlines()) - before

    cells = tmp_path / "out" / "cells.jsonl"
    (clear, first), again, (mixed, changed) = figures(x > 0.5), figures(x > 0.5), figures(noise > 0.5)
    assert (first, again, changed) == (1, (clear, 0), 1)
    assert clear > 0.8 > mixed


def test_a_comparison_with_attackers_says_who_attacked_and_what_stood_against_them(tmp_path):
    digits = ["data.name=digits", "data.clients=6", "rounds.participants=6", "rounds.total=1", "local.steps=1"]
    attacked = ["attack.kind=sign-flip", "attack.clients=2", "algorithm.aggregate=median"]
    found = compare("plain", ["fedavg"], 1, tmp_path, [*digits, *attacked], show_progress=False)
    said = "2 of the clients were simulated attackers (sign-flip); the server combined messages by the "
    assert table_lines(found.rows)[-1].startswith(said)
    assert "2,sign-flip,median" in (tmp_path / "compare.csv").read_text()


def test_what_the_user_says_about_measuring_counts():
    own = comparison_configs("plain", ["fedavg"], [*SMALL, "rounds.total=100"])["fedavg"].metrics
    assert (own.evaluate_every, own.diagnose_every) == (5, 100)
    said = comparison_configs("plain", ["fedavg"], ["metrics.evaluate_every=1", "metrics.diagnose_every=7"])["fedavg"].metrics
    assert (said.evaluate_every, said.diagnose_every) == (1, 7)


def test_unknown_algorithm_is_one_helpful_line():
    with pytest.raises(ConfigError, match=r"'fedsgd' in --algorithms: choose from fedavg,fedprox"):
        comparison_configs("plain", ["fedavg", "fedsgd"])


def test_epsilon_grows_to_the_budget():
    config = load_config("plain", [*SMALL, *SOUND, "rounds.total=40"])
    spent = [epsilon_so_far(config, t) for t in (1, 10, 20, 40)]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(2.0, rel=1e-6)
    assert spent[0] < 1.0


def test_diverged_runs_are_said():
    row = dict.fromkeys(("low", "high", "averaged", "nonzero_fraction", "uplink_bytes", "downlink_bytes", "seconds"))
    row |= {"algorithm": "fedavg", "seeds": 2, "diverged": 2, "accuracy": None, "mechanism": "none", "penalty": "l1 by prox"}
    assert "all runs diverged" in table_lines([row])[1]


@pytest.mark.parametrize("values", [[0.1, 0.4], [0.7, 0.71, 0.69, 0.73, 0.7], [1.0, 1.0, 1.0]])
def test_interval_is_scipys(values):
    interval = t_interval(values)
    assert interval.mean == pytest.approx(sum(values) / len(values))
    error = stats.sem(values)
    expected = stats.t.interval(0.95, len(values) - 1, interval.mean, error) if error else (1.0, 1.0)
    assert (interval.low, interval.high) == pytest.approx(expected)


def test_one_seed_decides_nothing():
    assert t_interval([0.5]) == Interval(0.5, -math.inf, math.inf)
    assert verdict(t_interval([0.5])) == "undecided"


def test_trend_is_the_regression_slope():
    values = [0.3, 0.1, 0.4, 0.9]
    assert trend(values) == pytest.approx(stats.linregress(range(4), values).slope)


@pytest.mark.parametrize("name", ["certified", "heterogeneity"])
def test_the_page_of_a_study_shows_each_verdict_once(name):
    folder = Path(__file__).parents[2] / "docs" / "results" / "paper"
    page = (folder / f"{name}.md").read_text(encoding="utf-8")
    found = [line for line in page.splitlines() if line.startswith("|")]
    assert found == verdict_lines(json.loads((folder / f"{name}.json").read_text()))


def test_a_study_is_written_with_one_table(tmp_path):
    verdict = {"claim": "here: FedPDM is first", "against": "fedavg", "effect": 0.1, "interval": [0.0, 0.2], "verdict": "holds"}
    write_study("small", "A study", "Some text.", tmp_path, [{"point": "here", "accuracy": 0.9}], [verdict])
    lines = (tmp_path / "small.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("|")] == verdict_lines([verdict])
