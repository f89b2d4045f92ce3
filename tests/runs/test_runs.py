"""The run folder: its content, and a killed run that continues to the same end."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedpdm
from fedpdm.config import digest, load_config
from fedpdm.errors import ConfigError, UserError
from fedpdm.runs.folder import RunFolder, read_models

DIGITS = [
    "data.name=digits",
    "data.clients=10",
    "rounds.participants=4",
    "algorithm.server_rule=dual-memory",
    "metrics.diagnose_every=5",
]
SUMMARY_KEYS = {
    "test_accuracy",
    "test_accuracy_averaged",
    "objective",
    "nonzero_fraction",
    "stationarity",
    "rounds",
    "seconds",
    "compile_seconds",
    "uplink_bytes",
    "downlink_bytes",
    "uplink_bits_paper",
    "epsilon",
    "delta",
    "relation",
    "mechanism",
}


def train(path: Path, *settings: str) -> RunFolder:
    return RunFolder(fedpdm.train(load_config("plain", [*DIGITS, *settings]), path).folder)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedpdm.cli.main", *arguments]


def test_folder_holds_what_was_asked_measured_and_learnt(tmp_path):
    folder = train(tmp_path / "a" / "run", "rounds.total=12")
    assert {p.name for p in folder.path.iterdir()} >= {
        "manifest.json",
        "metrics.jsonl",
        "model.safetensors",
        "checkpoint.safetensors",
        "summary.json",
    }
    manifest, summary, rows = folder.manifest(), folder.summary(), folder.rows()
    assert manifest["config"]["rounds"]["total"] == 12
    assert {"seed", "versions", "git_commit", "data_checksums"} <= manifest.keys()
    assert summary is not None
    assert summary.keys() >= SUMMARY_KEYS
    assert [row["round"] for row in rows] == list(range(1, 13))
    assert all({"test_accuracy", "nonzero_fraction", "consensus_gap", "local_steps_mean"} <= row.keys() for row in rows)
    assert [row["round"] for row in rows if "stationarity" in row] == [1, 5, 10, 12]
    assert summary["test_accuracy"] == pytest.approx(rows[-1]["test_accuracy"], abs=1e-6)
    # all ten clients in round 1, then four a round; 650 weights of 4 bytes, and a header of 12 + 5
    assert summary["uplink_bytes"] == (10 + 11 * 4) * (650 * 4 + 17) == rows[-1]["uplink_bytes"]
    assert summary["uplink_bits_paper"] == 32 * 650 * 12 * 4 == rows[-1]["uplink_bits_paper"]
    assert rows[4]["downlink_bits_paper"] == 32 * 650 * 5 * 4


def test_averaged_model_is_the_mean_of_the_last_half(tmp_path):
    """Checked against runs that are stopped earlier (a run's rounds do not depend on its length)."""
    long = read_models(train(tmp_path / "8", "rounds.total=8").path)
    models = [read_models(train(tmp_path / f"{t}", f"rounds.total={t}").path)["model"] for t in (5, 6, 7)]
    expected = np.mean([*models, long["model"]], axis=0)
    np.testing.assert_allclose(long["averaged_model"], expected, atol=1e-6)


def test_kill_at_any_moment_then_resume_gives_the_same_bits(tmp_path):
    """Real processes, a real SIGKILL at several moments, and the result of the undisturbed run."""
    settings = [f"--set={s}" for s in [*DIGITS, "rounds.total=4000"]]
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    subprocess.run(command("run", "plain", *settings, "--out", str(undisturbed), "--quiet"), check=True)
    arguments = ("run", "plain", *settings, "--out", str(killed), "--quiet")
    kills = 0
    for wanted in (1, 2, 3):
        process = subprocess.Popen(command(*arguments))
        seen = _checkpoint_time(killed)
        while process.poll() is None:
            rows = (killed / "metrics.jsonl").stat().st_size if (killed / "metrics.jsonl").exists() else 0
            # the first kill comes before any checkpoint, the others after a fresh one
            if (wanted == 1 and rows) or (wanted > 1 and _checkpoint_time(killed) != seen):
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        kills += process.wait() == -signal.SIGKILL
        arguments = ("run", "--resume", str(killed), "--quiet")
    assert kills >= 2
    assert not (killed / "summary.json").exists()
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"round": 99')  # the half line of a write that was cut
    subprocess.run(command(*arguments), check=True)
    assert (killed / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()
    assert (killed / "metrics.jsonl").read_bytes() == (undisturbed / "metrics.jsonl").read_bytes()


def _checkpoint_time(path: Path) -> int:
    checkpoint = path / "checkpoint.safetensors"
    return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0


def test_resume_of_an_edited_run_is_refused(tmp_path):
    folder = train(tmp_path / "run", "rounds.total=3")
    manifest = folder.manifest()
    manifest["config"]["algorithm"]["rho"] = 0.5
    folder.manifest_path.write_text(json.dumps(manifest))
    again = RunFolder.reopen(folder.path)
    with pytest.raises(ConfigError, match="edited"):
        again.config()
    again.close()


def test_checkpoint_of_other_settings_or_broken_is_refused_and_kept(tmp_path):
    folder = train(tmp_path / "run", "rounds.total=3")
    with pytest.raises(ConfigError, match="other settings"):
        folder.load_checkpoint([], digest(load_config("plain")))
    broken = folder.checkpoint_path.read_bytes()[:-100]
    folder.checkpoint_path.write_bytes(broken)
    with pytest.raises(UserError, match="broken"):
        folder.load_checkpoint([], "")
    assert folder.checkpoint_path.read_bytes() == broken


def test_a_folder_with_a_run_is_not_overwritten_and_a_running_one_is_locked(tmp_path):
    folder = train(tmp_path / "run", "rounds.total=2")
    before = folder.summary_path.read_bytes()
    with pytest.raises(UserError, match="already holds a run"):
        train(tmp_path / "run", "rounds.total=2")
    assert folder.summary_path.read_bytes() == before
    first = RunFolder.reopen(folder.path)
    with pytest.raises(UserError, match="another process"):
        RunFolder.reopen(folder.path)
    first.close()


def test_another_seed_gives_another_model_and_the_same_seed_the_same(tmp_path):
    models = [
        read_models(train(tmp_path / str(i), "rounds.total=4", f"seed={seed}").path)["model"]
        for i, seed in enumerate([0, 0, 1])
    ]
    np.testing.assert_array_equal(models[0], models[1])
    assert np.abs(models[0] - models[2]).max() > 1e-3


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        train(tmp_path / "file" / "run", "rounds.total=2")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
