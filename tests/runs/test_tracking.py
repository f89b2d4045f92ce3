"""Trackers get all measurements, and a missing package costs one line."""

import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpdm.runs.tracking import TRACKERS, Trackers

SMALL = ["data.name=digits", "data.clients=10", "rounds.participants=4", "rounds.total=4", "metrics.diagnose_every=2"]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = [part for setting in SMALL for part in ("--set", setting)]
    command = [sys.executable, "-m", "fedpdm.cli.main", "run", "plain", *settings, "--out", "run", "--quiet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder)


def measured(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_gets_every_round(tmp_path):
    events = importlib.import_module("tensorboardX.proto.event_pb2")
    from tensorboardX.record_writer import masked_crc32c

    done = run(tmp_path, "--track", "tensorboard")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "run" / "tensorboard").iterdir()
    data, seen = path.read_bytes(), {}
    while data:
        length = int.from_bytes(data[:8], "little")
        body = data[12 : 12 + length]
        assert masked_crc32c(body) == int.from_bytes(data[12 + length : 16 + length], "little")
        event = events.Event.FromString(body)
        seen |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        data = data[16 + length :]
    for row in measured(tmp_path):
        assert seen["test_accuracy", row["round"]] == pytest.approx(row["test_accuracy"], rel=1e-6)
    assert ("objective", 4) in seen


def test_mlflow_gets_settings_rounds_and_results(tmp_path):
    done = run(tmp_path, "--track", "mlflow")
    assert done.returncode == 0, done.stderr
    ask = (
        "from mlflow import MlflowClient; import json; c = MlflowClient(); "
        "r = c.search_runs([c.get_experiment_by_name('fedpdm').experiment_id])[0]; "
        "h = c.get_metric_history(r.info.run_id, 'test_accuracy'); "
        "print(json.dumps([r.info.status, r.data.params['rounds.total'], {m.step: m.value for m in h}, r.data.metrics]))"
    )
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, cwd=tmp_path, timeout=900)
    status, rounds, history, final = json.loads(answer.stdout)
    assert (status, rounds) == ("FINISHED", "4")
    assert history == {str(row["round"]): row["test_accuracy"] for row in measured(tmp_path)}
    assert "final.test_accuracy_averaged" in final


@pytest.mark.parametrize("name", ["wandb", *(name for name, package in TRACKERS.items() if find_spec(package) is None)])
def test_what_cannot_be_tracked_is_said_in_one_line(tmp_path, name):
    done = run(tmp_path, "--track", name)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert ("choose mlflow or tensorboard" if name == "wandb" else f"pip install 'fedpdm[{name}]'") in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(capsys):
    class Lost:
        def rows(self, rows):
            raise ConnectionError("the server\nis gone")

        def finish(self, summary):
            raise AssertionError("it was left out")

        def close(self):
            raise AssertionError("it was left out")

    class Kept(Lost):
        def __init__(self):
            self.taken = []

        def rows(self, rows):
            self.taken += rows

        def finish(self, summary):
            self.taken.append(summary)

        def close(self):
            raise OSError("no space")

    kept = Kept()
    tracking = Trackers([Lost(), kept], SimpleNamespace(rows=lambda: [{"round": 1}]))
    tracking.rows([{"round": 1}])
    tracking.rows([{"round": 2}])
    tracking.finish({"rounds": 2})
    tracking.close()
    assert kept.taken == [{"round": 1}, {"round": 2}, {"rounds": 2}]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" takes")[0] for line in lines] == ["fedpdm: Lost", "fedpdm: Kept"]
    assert "ConnectionError: the server is gone. The run goes on" in lines[0]
