"""The privacy commands as a person uses them."""

import json
import sqlite3

import pytest
from conftest import fedpdm

from fedpdm.privacy.accounting import compose_gdp, epsilon_of, gdp_epsilon

SOUND = [
    part
    for setting in (
        "data.name=digits",
        "data.clients=10",
        "rounds.participants=5",
        "rounds.total=8",
        "rounds.sampling=cycle",
        "rounds.all_first=false",
        "local.batch_size=0",
        "local.step_size=1.0",
        "privacy.mechanism=sound",
        "privacy.epsilon=2.0",
    )
    for part in ("--set", setting)
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound") / "run"
    done = fedpdm("run", "plain", *SOUND, "--out", str(folder))
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_a_private_run_ends_with_the_whole_guarantee_in_one_sentence(run):
    _, printed = run
    (sentence,) = [line for line in printed.splitlines() if line.startswith("Differential privacy")]
    for words in ("epsilon = 2 ", "delta = 1e-05", "one example of one client", "add-remove", "the server and everyone"):
        assert words in sentence


def test_summary_plan_and_ledger_agree_on_epsilon(run):
    folder, _ = run
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["epsilon"] == pytest.approx(2.0, rel=1e-6)
    planned = fedpdm(
        "privacy", "plan", "--epsilon", "2", "--participations", str(summary["participations"]), "--examples", "144", "--json"
    )
    multiplier = json.loads(planned.stdout)["modes"]["contractive"]["add-remove"]["noise_multiplier"]
    assert multiplier == pytest.approx(summary["noise_multiplier"], rel=1e-9)
    with sqlite3.connect(folder / "ledger.sqlite") as database:
        rows = database.execute("SELECT client, sigma / sensitivity FROM releases").fetchall()
    database.close()
    by_client: dict[str, list[float]] = {}
    for client, ratio in rows:
        by_client.setdefault(client, []).append(ratio)
    worst = max(gdp_epsilon(compose_gdp(ratios), 1e-5) for ratios in by_client.values())
    assert worst == pytest.approx(summary["epsilon"], rel=1e-9)
    assert max(map(len, by_client.values())) == summary["participations"] == 4


def test_spent_names_every_client_and_the_worst(run):
    folder, _ = run
    accounts = json.loads(fedpdm("privacy", "spent", str(folder), "--json").stdout)
    assert len(accounts["clients"]) == 10
    assert accounts["worst"]["epsilon_spent"] == pytest.approx(2.0, rel=1e-6)
    assert "Worst: client-" in fedpdm("privacy", "spent", str(folder)).stdout


def test_manifest_says_that_the_noise_is_simulated(run):
    folder, _ = run
    assert "simulated" in json.loads((folder / "manifest.json").read_text())["noise"]


def test_plan_solves_for_whatever_is_left_out():
    def solve(*flags: str) -> dict:
        return json.loads(fedpdm("privacy", "plan", *flags, "--delta", "1e-4", "--json").stdout)["modes"]["linearised"]

    noise = solve("--epsilon", "1", "--participations", "60")
    assert noise["add-remove"]["noise_multiplier"] == pytest.approx(24.7, rel=0.01)  # R = 60, delta = 1e-4
    back = solve("--noise-multiplier", str(noise["add-remove"]["noise_multiplier"]), "--participations", "60")
    assert back["add-remove"]["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert back["replace-one"]["epsilon"] == pytest.approx(2.21, rel=0.01)
    times = solve("--epsilon", "1", "--noise-multiplier", "24.7")
    assert times["add-remove"]["participations"] == 60
    assert epsilon_of(24.7, 61, 1e-4, "add-remove") > 1


def test_paper_s_run_keeps_the_three_figures_apart_and_warns(tmp_path):
    flags = ["rounds.total=10", "data.name=digits", "data.clients=10", "rounds.participants=5", "local.steps=5"]
    flags += ["privacy.mechanism=paper", "privacy.epsilon=20.0", "privacy.delta=1e-4"]
    settings = [part for flag in flags for part in ("--set", flag)]
    done = fedpdm("run", "paper-mnist", *settings, "--out", str(tmp_path / "r"), "--quiet")
    assert done.returncode == 0, done.stderr
    assert "Nothing is guaranteed" in done.stdout
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["epsilon"] is None
    assert summary["epsilon_nominal"] == 20.0
    assert summary["epsilon_face_value"] > 20.0


def test_audit_prints_the_verdict_and_its_exit_code_is_about_sound_mechanisms(tmp_path):
    refuted = fedpdm(
        "privacy", "audit", "--mechanism", "paper", "--attack", "support", "--runs", "2000", "--out", str(tmp_path)
    )
    assert refuted.returncode == 0, refuted.stderr
    assert "the claim is refuted" in refuted.stdout
    assert (tmp_path / "audit-paper-support.png").stat().st_size > 1000
    upheld = fedpdm("privacy", "audit", "--attack", "canary", "--runs", "2000", "--json")
    assert upheld.returncode == 0, upheld.stderr
    assert json.loads(upheld.stdout)[0]["breached"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "--epsilon", "1"], "two of --epsilon"),
        (["plan", "--epsilon", "-1", "--participations", "5"], "epsilon=-1"),
        (["spent", "/nonexistent"], "no ledger"),
        (["audit", "--mechanism", "other"], "other"),
        (["audit", "--attack", "other", "--runs", "100"], "other"),
        (["audit", "--loss", "cubic"], "choose one of logistic, softmax"),
    ],
)
def test_mistakes_get_one_line(arguments, words):
    done = fedpdm("privacy", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
