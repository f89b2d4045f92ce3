"""The command as a person uses it: real processes, their output and exit codes."""

import json
import os
import subprocess
import sys
import tomllib

import pytest
from conftest import fedpdm

from fedpdm.config import load_config

SMALL = ["--set", "data.name=digits", "--set", "data.clients=10", "--set", "rounds.participants=4"]


def test_run_prints_the_folder_and_json_is_json(tmp_path):
    out = tmp_path / "exactly-here"
    done = fedpdm("run", "plain", *SMALL, "--set", "rounds.total=3", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert f"Run folder: {out}" in done.stdout
    assert "round 3/3" in done.stderr
    again = fedpdm("run", "--resume", str(out), "--json")
    assert json.loads(again.stdout)["rounds"] == 3
    quiet = fedpdm("run", "plain", *SMALL, "--set", "rounds.total=2", "--quiet", "--json", cwd=tmp_path)
    assert quiet.stderr == ""
    assert (tmp_path / json.loads(quiet.stdout)["folder"] / "summary.json").exists()


def test_config_show_can_be_run_again_and_is_commented(tmp_path):
    shown = fedpdm("config", "show", "paper-mnist")
    values = tomllib.loads(shown.stdout)
    assert values["algorithm"]["rho"] == 10.0
    assert values["local"]["step_size"] == 0.04
    assert all("#" in line for line in shown.stdout.splitlines() if "=" in line)
    path = tmp_path / "mine.toml"
    path.write_text(shown.stdout)
    assert fedpdm("config", "show", str(path)).stdout == shown.stdout


def test_presets_are_listed():
    assert [line.split()[0] for line in fedpdm("presets").stdout.splitlines()] == [
        "demo",
        "mapped",
        "paper-adult",
        "paper-mnist",
        "plain",
        "private-mapped",
        "private-table",
        "table",
    ]


def test_data_info():
    assert "1442 training and 355 test" in fedpdm("data", "info", "digits").stdout


def test_literal_reading_is_said_in_words_not_reported_as_a_result(tmp_path):
    settings = ["problem.loss=logistic", "problem.gamma=0.5", "algorithm.rho=10.0", "local.step_size=0.04"]
    flags = [part for s in settings for part in ("--set", s)]
    done = fedpdm("run", "plain", *SMALL, "--set", "rounds.total=20", *flags, "--out", str(tmp_path / "r"))
    assert done.returncode == 0, done.stderr
    assert "The model is zero" in done.stdout
    assert 'penalty_scale="sum"' in done.stdout
    assert "accuracy" not in done.stdout


def test_theory_prints_a_table_and_json():
    done = fedpdm("theory", "paper-mnist", *SMALL, "--json", "--target", "0.5")
    values = json.loads(done.stdout)
    assert values["L"] > 1.0  # 2 beta alone is 1
    assert "rounds for P <= 0.5" in values
    assert fedpdm("theory", "paper-mnist", *SMALL).stdout.startswith("Theorem 3 does not apply to these settings")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "plain", "--set", "algorithm.roh=1"], ["algorithm.roh", "algorithm.rho"]),
        (["run", "plain", "--set", "rounds.total=many"], ["rounds.total", "many", "integer"]),
        (["run", "plain", "--set", "rounds.participants=101"], ["101", "100"]),
        (["run", "plain", "--set", "algorithm.rho=0.0"], ["algorithm.rho", "greater than 0"]),
        (["run", "plain", "--set", "algorithm.rho=nan"], ["algorithm.rho"]),
        (["run", "demo", "--set", "compression.uplink=0.1"], ["topk", "not noised", "shared-randk"]),
        (["run", "demo", "--set", "compression.uplink=0.0"], ["compression.uplink", "greater than 0"]),
        (["run", "plain", "--set", "privacy.mechanism=sound"], ["privacy.epsilon"]),
        (["run", "demo", "--set", "privacy.mechanism=none"], ["privacy.epsilon", "no effect"]),
        (["run", "demo", *SMALL, "--set", "local.step_size=9.0"], ["local.step_size", "3.96"]),
        (["run", "demo", *SMALL, "--set", "local.tolerance=0.1", "--set", "local.batch_size=5"], ["local.tolerance"]),
        (["run", "plain", "--set", "algorithm.name=scafold"], ["algorithm.name", "scaffold"]),
        (["run", "plain", "--set", "privacy.epsilon=1.0"], ["privacy.epsilon", "no effect"]),
        (["run", "plain", "--set", "nonsense"], ["KEY=VALUE"]),
        (["run", "nowhere.toml"], ["nowhere.toml", "demo"]),
        (["run", "plain", "--set", "data.name=minst"], ["minst", "mnist"]),
        (["run", "plain", "--data-dir", "/nonexistent"], ["/nonexistent"]),
        (["run", "--resume", "/nonexistent"], ["/nonexistent", "nothing to resume"]),
        (["run", "plain", "--resume", "/nonexistent"], ["--resume"]),
        (["run", "plain", *SMALL, "--out", "/proc/fedpdm"], ["/proc/fedpdm", "cannot be written"]),
        (["run", "plain", *SMALL, "--set", "problem.penalty=scad", "--set", "problem.penalty_concavity=1.5"], ["1.5"]),
    ],
)
def test_a_mistake_gets_one_clear_line_and_exit_code_2(arguments, words, tmp_path):
    done = fedpdm(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert word in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_a_command_a_newcomer_is_told_how_to_begin():
    done = fedpdm()
    assert done.returncode == 0
    assert done.stdout.startswith("New here?")
    assert "report" in done.stdout
    hinted = done.stdout.splitlines()[1].split()
    assert hinted[:2] == ["fedpdm", "run"]
    assert load_config(hinted[2], [word for word in hinted if "=" in word]).data.name == "digits"  # no download


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runn"], ["runn", "fedpdm --help"]),
        (["run", "--sett", "x"], ["--sett", "--set", "fedpdm run --help"]),
        (["report"], ["Missing argument", "RUN", "fedpdm report --help"]),
        (["report", "/nonexistent"], ["/nonexistent", "neither a run"]),
        (["privacy", "plan", "--epsilon", "much"], ["--epsilon", "number|float"]),
        (["run", "demo", "--track", "wandb"], ["wandb", "mlflow or tensorboard"]),
    ],
)
def test_a_misspelt_command_gets_one_line_too(arguments, words, tmp_path):
    done = fedpdm(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert any(choice in done.stderr for choice in word.split("|")), done.stderr


@pytest.mark.parametrize("command", [[], ["run"], ["report"], ["privacy", "plan"], ["config", "show"], ["compare"]])
def test_help_is_plain_and_has_examples(command):
    done = fedpdm(*command, "--help")
    assert done.returncode == 0
    assert not set("╭│╰\x1b\b") & set(done.stdout)
    assert "\\[" not in done.stdout
    assert not command or "\n    fedpdm " in done.stdout


def test_a_reader_that_stops_early_is_no_error():
    shell = f"{sys.executable} -m fedpdm.cli.main config show demo | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_shell_completes_presets_settings_and_choices(tmp_path):
    def offered(words: str) -> list[str]:
        variables = {"_FEDPDM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        command = [sys.executable, "-m", "fedpdm.cli.main"]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, cwd=tmp_path)
        return done.stdout.split()

    assert offered("fedpdm run paper") == ["paper-adult", "paper-mnist"]
    assert offered("fedpdm run --set rounds.samp") == ["rounds.sampling="]
    assert "report" in offered("fedpdm re")
    (tmp_path / "mine.toml").touch()
    assert offered("fedpdm run mi") == ["mine.toml"]


def test_divergence_names_round_and_client_and_keeps_the_checkpoint(tmp_path):
    out = tmp_path / "run"
    flags = ["--set", "local.step_size=1e30", "--set", "problem.penalty=none", "--set", "rounds.total=30"]
    done = fedpdm("run", "plain", *SMALL, *flags, "--out", str(out), "--quiet")
    assert done.returncode == 2
    assert "client" in done.stderr
    assert "round" in done.stderr
    assert "NaN" in done.stderr
    assert not (out / "summary.json").exists()


def test_help_waits_for_nothing_heavy():
    code = "import sys, fedpdm.cli.main; print([name for name in ('jax', 'numpy', 'scipy', 'pydantic') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True)
    assert done.stdout.strip() == "[]"
