"""An audit of a job on a client's own rows: an honest node keeps its claim, one with too little noise does not."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from fedpdm.audit import node
from fedpdm.audit.live import audit_job, read_coins, toss
from fedpdm.cli.main import app
from fedpdm.engines.flower.client.client import Node, answer
from fedpdm.engines.flower.client.held_jobs import hold
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.job import Job
from fedpdm.errors import UserError
from fedpdm.privacy.noise import SecureGaussian

ROWS, WIDTH, CANARIES, ROUNDS = 100, 320, 60, 2  # few rows for the width: canaries hardly hide each other
POLICY = "[budget]\nepsilon = 100.0\ndelta = 1e-5\n[limits]\nnoise_multiplier_min = 0.01\nstep_size_max = 1e6\n"


@pytest.fixture(scope="module")
def job() -> Job:
    return node._job(node._node_config(1.0, "linearised", ROUNDS), ROWS, WIDTH)


def run(folder: Path, job: Job, policy: str = POLICY + "[audit]\nkeep_messages = true\n") -> Path:
    """A job on the rows that the coins left; the server's models are zero."""
    rng = np.random.default_rng(4)
    np.savez(folder / "rows.npz", features=rng.normal(size=(ROWS, WIDTH)), labels=rng.integers(0, node.CLASSES, ROWS))
    files = ["--out", str(folder / "own.npz"), "--coins", str(folder / "coins.json")]
    told = CliRunner().invoke(
        app,
        ["privacy", "canaries", str(folder / "rows.npz"), "--count", str(CANARIES), *files],
    )
    assert told.exit_code == 0, told.exception
    (folder / "policy.toml").write_text(policy)
    own = Node(NodeSource(0, folder / "own.npz", None, None), folder / "state", folder / "policy.toml")
    own.state_dir.mkdir(mode=0o700)
    hold(own.state_dir, job, load_policy(own.policy))
    target, accepted = object.__new__(node.AttackedNode), ""
    target.job, target.node = job, own
    for t in range(ROUNDS):
        reply = answer(own, target.request(t, np.zeros(job.shape, np.float32), accepted))
        assert not reply.refused
        accepted = reply.message
    return own.state_dir


def test_an_honest_job_keeps_its_claim_and_one_with_too_little_noise_does_not(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("honest", "quiet"):
        (tmp_path / name).mkdir()
    state = run(tmp_path / "honest", job)
    # 95 % would fail an honest node now and then: its coins and its noise are drawn anew in every test
    found = audit_job(state, job.digest, read_coins(tmp_path / "honest" / "coins.json"), confidence=1 - 1e-9)
    assert not found.breached, found.sentence
    assert found.claimed_epsilon == pytest.approx(1.0, rel=1e-3), "what the ledger says"
    assert "on real rows" in found.sentence
    assert all(path.stat().st_mode & 0o077 == 0 for path in (state / "audit").rglob("*"))
    assert (tmp_path / "honest" / "coins.json").stat().st_mode & 0o077 == 0
    honest = SecureGaussian.release
    monkeypatch.setattr(SecureGaussian, "release", lambda self, x, sigma: honest(self, x, sigma / 50))
    state = run(tmp_path / "quiet", job)
    arguments = ["--state-dir", str(state), "--coins", str(tmp_path / "quiet" / "coins.json"), "--json"]
    told = CliRunner().invoke(app, ["privacy", "audit", "--target", "live", *arguments])
    assert told.exit_code == 1, told.output
    assert json.loads(told.output)["gdp_lower_bound"] > 1.5


def test_an_audit_without_evidence_says_so(job: Job, tmp_path: Path) -> None:
    state = run(tmp_path, job, POLICY)
    assert not (state / "audit").exists(), "nothing is kept unless the policy says so"
    coins = read_coins(tmp_path / "coins.json")
    with pytest.raises(UserError, match="keep_messages = true"):
        audit_job(state, job.digest, coins)
    for arguments, words in (
        (["--target", "live"], "needs --state-dir and --coins"),
        (["--target", "live", "--state-dir", str(state), "--coins", str(tmp_path / "policy.toml")], "no file of coins"),
        (["--target", "live", "--state-dir", str(state), "--coins", str(tmp_path), "--job", "x"], "holds 0 jobs"),
    ):
        assert words in str(CliRunner().invoke(app, ["privacy", "audit", *arguments]).exception)


@pytest.mark.parametrize("ending", ["csv", "svm", "parquet", "npz"])
def test_the_rows_of_tails_are_left_out_in_every_format(ending: str, tmp_path: Path) -> None:
    path, out, numbers = tmp_path / f"rows.{ending}", tmp_path / f"out.{ending}", list(range(30))
    if ending == "parquet":
        pl.DataFrame({"a": numbers}).write_parquet(path)
    elif ending == "npz":
        np.savez(path, a=numbers)
    else:
        lines = ["a", *map(str, numbers)] if ending == "csv" else [f"1 1:{number}" for number in numbers]
        path.write_text("\n".join(lines) + "\n")
    tossed = toss(path, out, tmp_path / "coins.json", 20)
    assert read_coins(tmp_path / "coins.json") == tossed
    gone = {row for row, coin in zip(tossed.rows, tossed.there, strict=True) if not coin}
    if ending == "parquet":
        left = pl.read_parquet(out)["a"].to_list()
    elif ending == "npz":
        left = np.load(out)["a"].tolist()
    else:
        left = [int(line.split(":")[-1]) for line in out.read_text().split("\n") if line and line != "a"]
    assert left == [number for number in numbers if number not in gone]
    with pytest.raises(UserError, match="new files"):
        toss(path, out, tmp_path / "coins.json", 20)
