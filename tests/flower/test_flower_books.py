"""A node never counts less than the true spending, unless an operator decides so with a reason."""

import itertools
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpdm.cli.main import app
from fedpdm.engines.flower.client import books
from fedpdm.engines.flower.client.books import ACCOUNT, BudgetClosed, accept, open_books
from fedpdm.engines.flower.client.node_data import NodeSource
from fedpdm.engines.flower.client.pace import hold
from fedpdm.engines.flower.client.seal import Seal, seal_of
from fedpdm.engines.flower.client.store import open_store
from fedpdm.engines.flower.processes.status import client_status
from fedpdm.engines.flower.protocol import Request
from fedpdm.errors import ConfigError, UserError
from fedpdm.privacy.ledger import Budget, Ledger

BUDGET = Budget(1.0, 1e-5, "add-remove")
FLIPS = 600


class Folder:
    """A node's folder, data file and seal, without the model: spends and messages alone."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.root, self.state = root, root / "state"
        self.source = NodeSource(0, root / "rows.csv", None, None)
        self.seal = seal_of(self.source, None)

    def release(self, count: int = 1, job: str = "job", budget: Budget = BUDGET) -> float:
        """Spend and store messages as `answer` does; return the spending on record."""
        with open_store(self.state) as store, open_books(self.state, store, budget, self.seal) as ledger:
            done = len(store.messages(job))
            if not done:
                store.state(Request("train", job, 0, 0, ""), "settings", lambda: [np.zeros(2)])
            for t in range(done, done + count):
                ledger.spend(ACCOUNT, t, 0.1, 5.0, "test", job)
                store.keep(Request("train", job, t, 0, ""), f"m{t}", b"x" * 50, [np.zeros(2)], ledger.chain.head)
            return ledger.spent(ACCOUNT)[0]

    def spent(self) -> float:
        return self.release(0)

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in [*self.state.glob("*.sqlite*"), self.root / "rows.csv.fedpdm-seal"]}

    def restore(self, files: dict[Path, bytes]) -> None:
        shutil.rmtree(self.state)
        self.state.mkdir()
        for path, content in files.items():
            path.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "node")
    made.release(2)
    return made


def lose(*patterns: str) -> Callable[[Folder, dict[Path, bytes]], None]:
    def change(folder: Folder, old: dict[Path, bytes]) -> None:
        for path in [p for pattern in patterns for p in folder.root.glob(pattern)]:
            path.unlink()

    return change


def put_back(*names: str) -> Callable[[Folder, dict[Path, bytes]], None]:
    def change(folder: Folder, old: dict[Path, bytes]) -> None:
        for path, content in old.items():
            if path.name in names:
                path.write_bytes(content)

    return change


def both(*changes: Callable) -> Callable[[Folder, dict[Path, bytes]], None]:
    return lambda folder, old: [change(folder, old) for change in changes] and None


LEDGER, STATE, SEAL = "ledger.sqlite", "state.sqlite", "rows.csv.fedpdm-seal"
HURT = {
    "ledger lost": lose("state/ledger*"),
    "ledger and seal lost": lose("state/ledger*", "*seal"),
    "whole folder lost": lose("state/*"),
    "seal lost": lose("*seal"),
    "old ledger": put_back(LEDGER),
    "old ledger, seal lost": both(put_back(LEDGER), lose("*seal")),
    "old ledger and old seal": put_back(LEDGER, SEAL),
    "old folder": put_back(LEDGER, STATE),
    "old ledger, messages lost": both(put_back(LEDGER), lose("state/state*")),
}


@pytest.mark.parametrize("what", HURT)
def test_a_ledger_that_is_missing_or_old_means_that_nothing_is_left(folder: Folder, what: str) -> None:
    old = folder.files()
    folder.release(2)
    HURT[what](folder, old)
    with pytest.raises(BudgetClosed, match=r"budget accept"):
        folder.spent()
    with pytest.raises(BudgetClosed):
        folder.release(1, job="next")


def test_what_is_no_contradiction_is_answered(folder: Folder) -> None:
    old, spent = folder.files(), folder.spent()
    assert folder.spent() == spent
    lose("state/state*")(folder, old)  # costs the jobs under way, not the budget
    assert folder.spent() == spent
    after = folder.release(1, job="other")
    put_back(SEAL)(folder, old)  # a crash between ledger and seal leaves the seal behind
    assert folder.spent() == after > spent


def test_the_comparison_is_what_finds_an_old_copy(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without it the budget is renewed."""
    old, spent = folder.files(), folder.spent()
    more = folder.release(2)
    put_back(LEDGER)(folder, old)
    monkeypatch.setattr(books, "_trouble", lambda *_: None)
    assert folder.spent() == spent < more


def test_thousands_of_changes_never_read_as_less_than_was_spent(folder: Folder) -> None:
    """Bits of every file, and cuts of every file, with the others as they are."""
    first = folder.files()
    spent = folder.release(3)
    last = folder.files()
    random = np.random.default_rng(0)
    outcomes = {"closed": 0, "same": 0}
    flips = [(path, "flip") for path in last] * (FLIPS // len(last))
    for path, how in [*flips, *itertools.product(last, ["cut"] * 20), *itertools.product(last, ["old", "gone"])]:
        changed = dict(last)
        content = bytearray(last[path])
        if how == "flip":
            content[random.integers(len(content))] ^= 1 << int(random.integers(8))
        elif how == "cut":
            content = content[: random.integers(len(content))]
        elif how == "old":
            content = bytearray(first.get(path, b""))
        changed[path] = bytes(content)
        folder.restore(changed)
        if how == "gone":
            path.unlink()
        try:
            assert folder.spent() >= spent, (path, how)
            outcomes["same"] += 1
        except UserError:
            outcomes["closed"] += 1
    assert outcomes["closed"] > 50
    assert outcomes["same"] > 50


@pytest.mark.parametrize("what", HURT)
def test_an_operators_word_opens_the_budget_and_stays_on_record(folder: Folder, what: str) -> None:
    old = folder.files()
    folder.release(2)
    HURT[what](folder, old)
    with open_store(folder.state) as store:
        with pytest.raises(ConfigError, match="--spent"):
            accept(folder.state, store, BUDGET, folder.seal, "the disk was replaced", None)
        with pytest.raises(ConfigError, match="Expected a reason"):
            accept(folder.state, store, BUDGET, folder.seal, " ", 0.5)
        accept(folder.state, store, BUDGET, folder.seal, "the disk was replaced", 0.5)
    assert folder.spent() >= 0.5 * (1 - 1e-9)
    assert folder.release(1, job="after") > 0.5
    with Ledger(folder.state / LEDGER) as ledger:
        assert any("the disk was replaced" in reason for _, reason in ledger.words())
    with open_store(folder.state) as store, pytest.raises(ConfigError, match="nothing to accept"):
        accept(folder.state, store, BUDGET, folder.seal, "again", 0.0)


def test_a_damaged_ledger_is_kept_under_another_name(folder: Folder) -> None:
    (folder.state / LEDGER).write_bytes(b"garbage")
    with open_store(folder.state) as store:
        accept(folder.state, store, BUDGET, folder.seal, "a broken disk", 0.9)
    assert (folder.state / "ledger-damaged-1.sqlite").read_bytes() == b"garbage"
    assert folder.spent() == pytest.approx(0.9)


def test_a_larger_budget_needs_a_reason_and_a_tighter_one_does_not(folder: Folder) -> None:
    spent = folder.spent()
    larger = Budget(2.0, 1e-5, "add-remove")
    with pytest.raises(BudgetClosed, match="larger one needs an operator's reason"):
        folder.release(0, budget=larger)
    with open_store(folder.state) as store:
        accept(folder.state, store, larger, folder.seal, "the board agreed", None)
    assert folder.release(0, budget=larger) == spent
    folder.release(0, budget=Budget(0.5, 1e-5, "add-remove"))
    with pytest.raises(BudgetClosed):
        folder.release(0, budget=BUDGET)


def test_a_second_folder_for_the_same_data_is_refused_and_a_folder_can_be_moved(folder: Folder) -> None:
    spent, first = folder.spent(), folder.state
    folder.state = folder.root / "second"
    with pytest.raises(BudgetClosed, match="belongs to another state folder"):
        folder.release()
    shutil.rmtree(folder.state)
    first.rename(folder.root / "moved")
    folder.state = folder.root / "moved"
    assert folder.spent() == spent


def test_the_policys_folder_holds_the_seals_of_sources_that_cannot_be_written(tmp_path: Path) -> None:
    seals = tmp_path / "seals"
    one, two = (seal_of(NodeSource(0, tmp_path / name, None, None), seals) for name in ("a.csv", "b.csv"))
    assert one != two
    assert one is not None
    assert one.path.parent == seals
    assert seal_of(NodeSource(0, None, None, None), None) is None
    new = Folder(tmp_path / "new")
    new.seal = Seal(Path("/proc/nowhere/seal"))
    with pytest.raises(BudgetClosed, match=r"cannot be used.*seals = "):
        new.spent()


def test_the_command_and_the_status_say_what_is_wrong_and_what_was_decided(folder: Folder, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[budget]\nepsilon = 1.0\ndelta = 1e-5\n")
    (folder.state / LEDGER).unlink()
    assert "missing" in client_status(folder.state)["trouble"]
    assert {job["epsilon_spent"] for job in client_status(folder.state)["jobs"]} == {None}  # not 0
    command = ["flower", "budget", "accept", str(folder.state), "--policy", str(policy), "--data-path", str(folder.source.path)]
    result = CliRunner().invoke(app, [*command, "--reason", "moved by hand", "--spent", "0.7"])
    assert result.exit_code == 0, result.output
    assert "missing" in result.output
    status = client_status(folder.state)
    assert status["trouble"] is None
    assert status["budget"]["epsilon_spent"] == pytest.approx(0.7)
    assert "moved by hand" in status["words"][0]["reason"]
    assert folder.spent() == pytest.approx(0.7)


def test_two_folders_at_once_cannot_both_claim_the_data(tmp_path: Path) -> None:
    """The seal is made in one step: the slower one finds that of the other."""
    ledgers = [Ledger(tmp_path / f"{i}.sqlite") for i in range(2)]
    seal = Seal(tmp_path / "seal")
    assert [seal._claim(ledger.chain) for ledger in ledgers] == [True, False]
    for ledger in ledgers:
        with suppress(UserError):
            ledger.close()


def test_an_answer_waits_for_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("[budget]\nepsilon = 1.0\ndelta = 1e-5\n[time]\nreply_after = 0.2\n")
    for late, waits in ((0.0, 1), (0.3, 2)):
        began = time.monotonic() - late
        hold(began, policy)
        assert time.monotonic() - began >= waits * 0.2
    assert "raise it" in capsys.readouterr().err
    policy.write_text("[budget]\nepsilon = 1.0\ndelta = 1e-5\n")
    hold(time.monotonic() - 1e6, policy)
    hold(0.0, tmp_path / "none.toml")


def test_files_that_vanish_beside_a_database_do_not_close_the_folder(tmp_path: Path) -> None:
    """A status command or another message closes a database: SQLite removes its -wal file while the folder is opened."""
    state, done = tmp_path / "state", threading.Event()
    state.mkdir()

    def come_and_go() -> None:
        while not done.is_set():
            for name in ("sums.sqlite-wal", "ledger.sqlite-wal"):
                (state / name).touch()
                (state / name).unlink()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(100):
            with open_store(state):
                pass
    finally:
        done.set()
        other.join()
