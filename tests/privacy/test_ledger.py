"""A budget holds across jobs, processes and crashes, and records stay."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpdm.errors import ConfigError, UserError
from fedpdm.privacy.accounting import epsilon_of, gdp_epsilon, noise_multiplier_for, participations_for
from fedpdm.privacy.ledger import AlreadySpent, BudgetExceeded, Ledger, LedgerDamaged, SpendRequest

BUDGET = (1.0, 1e-5, "add-remove")


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "ledger.db") as opened:
        opened.open_budget("a", *BUDGET)
        yield opened


def spend_until_refused(ledger, client, z, job="job", most=1000):
    for number in range(most):
        try:
            ledger.spend(client, number, 0.5, 0.5 * z, "test", job)
        except BudgetExceeded:
            return number
    return most


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("count", [1, 7, 60])
def test_a_plan_for_R_releases_gets_R_and_not_one_more(tmp_path, relation, count):
    z = noise_multiplier_for(1.0, 1e-5, count, relation)
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open_budget("a", 1.0, 1e-5, relation)
        assert ledger.remaining_releases("a", z) == count
        assert spend_until_refused(ledger, "a", z) == count
        epsilon, releases = ledger.spent("a")
        assert releases == count
        assert 1 - 1e-6 < epsilon <= 1 + 1e-12
        assert epsilon == pytest.approx(epsilon_of(z, count, 1e-5, relation))
        assert ledger.remaining_releases("a", z) == 0


def test_the_room_for_rounding_lets_nothing_else_through(ledger):
    z = noise_multiplier_for(*BUDGET[:2], 20, BUDGET[2])
    assert spend_until_refused(ledger, "a", z * (1 - 1e-8)) == 19


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(3.0, 30.0), min_size=10, max_size=30), st.sampled_from(["add-remove", "replace-one"]))
def test_recorded_releases_never_compose_to_more_than_the_budget(tmp_path_factory, multipliers, relation):
    requests = [SpendRequest("a", t, 0.1, 0.1 * z) for t, z in enumerate(multipliers)]
    with Ledger(tmp_path_factory.mktemp("ledger") / "ledger.db") as ledger:
        ledger.open_budget("a", 1.0, 1e-5, relation)
        granted = ledger.spend_many(requests, "test", "job")
        factor = 2 if relation == "replace-one" else 1
        rates = [factor / z for z in multipliers]

        def composed(kept):
            return gdp_epsilon(math.sqrt(sum(r * r for r, keep in zip(rates, kept, strict=True) if keep)), 1e-5)

        assert composed(granted) <= 1 + 1e-6
        assert [row.round for row in ledger.rows()] == [t for t, keep in enumerate(granted) if keep]
        for t in range(len(granted)):  # each refusal was due: with it, at its turn, the sum would be too much
            if not granted[t]:
                assert composed(granted[:t] + [True] + [False] * (len(granted) - t - 1)) > 1
        assert ledger.spent("a") == (pytest.approx(composed(granted)), sum(granted))


def test_a_refusal_names_the_numbers_and_leaves_nothing(ledger):
    ledger.spend("a", 0, 1.0, 5.0, "note", "job")
    before = ledger.rows()
    with pytest.raises(
        BudgetExceeded, match=r"spent epsilon=0\.\d+ of 1 \(delta=1e-05, add-remove\) in 1 releases; .* would make"
    ):
        ledger.spend("a", 1, 1.0, 0.5, "note", "job")
    assert ledger.rows() == before
    assert ledger.spend("a", 1, 1.0, 50.0, "note", "job").round == 1  # a smaller one still fits


def test_the_budget_is_one_for_all_jobs(ledger):
    z = noise_multiplier_for(*BUDGET[:2], 10, BUDGET[2])
    assert spend_until_refused(ledger, "a", z, job="first", most=6) == 6
    assert spend_until_refused(ledger, "a", z, job="second") == 4
    ledger.open_budget("b", *BUDGET)
    assert spend_until_refused(ledger, "b", z, job="second") == 10  # clients do not share


def test_the_same_release_is_refused_the_second_time(ledger):
    ledger.spend("a", 3, 1.0, 50.0, "note", "job")
    with pytest.raises(AlreadySpent, match="round 3 of job 'job'"):
        ledger.spend("a", 3, 1.0, 50.0, "note", "job")
    with pytest.raises(AlreadySpent):
        ledger.spend_many([SpendRequest("a", 4, 1.0, 50.0), SpendRequest("a", 4, 1.0, 50.0)], "note", "job")
    assert [row.round for row in ledger.rows()] == [3]  # and nothing of the batch
    ledger.spend("a", 3, 1.0, 50.0, "note", "another job")


def test_rows_say_what_was_recorded(ledger):
    spend = ledger.spend("a", np.int64(3), np.float32(0.5), np.float64(10), "linearised", "job")
    assert ledger.rows() == [spend]
    assert spend[:6] == ("a", "job", 3, 0.5, 10.0, "linearised")
    assert abs(spend.recorded_at - time.time()) < 60


def test_a_tighter_budget_takes_effect_and_a_larger_one_needs_a_reason(ledger):
    ledger.open_budget("a", *BUDGET)
    with pytest.raises(ConfigError, match="a larger one needs an operator's reason"):
        ledger.open_budget("a", 2.0, 1e-5, "add-remove")
    ledger.change_budget("a", 2.0, 1e-5, "add-remove", "the board agreed")
    z = noise_multiplier_for(2.0, 1e-5, 10, "add-remove")
    assert ledger.remaining_releases("a", z) == 10
    for tighter in ((1.5, 1e-5, "add-remove"), (1.5, 1e-6, "add-remove"), (1.5, 1e-6, "replace-one")):
        ledger.open_budget("a", *tighter)
        left, before = ledger.remaining_releases("a", z), ledger.accounts()[0]
        assert (before["epsilon"], before["delta"], before["relation"]) == tighter
    assert left < 3
    ledger.spend("a", 0, 1.0, z, "", "job")
    ledger.open_budget("a", 0.1, 1e-6, "add-remove")  # less than is spent already
    assert ledger.remaining_releases("a", 1e3) == 0
    with pytest.raises(BudgetExceeded):
        ledger.spend("a", 1, 1.0, 1e3, "", "job")
    with pytest.raises(ConfigError, match="Expected a reason"):
        ledger.change_budget("a", 9.0, 1e-5, "add-remove", "  ")
    with Ledger(ledger.path) as again:
        assert [reason for _, reason in again.words()] == ["the board agreed"]
        assert again.accounts() == ledger.accounts()


def test_what_an_operator_knows_is_carried_and_never_lowers_the_spend(ledger):
    ledger.carry("a", 0.6, "the old folder was lost")
    assert ledger.spent("a") == (pytest.approx(0.6), 0)
    ledger.spend("a", 0, 1.0, 20.0, "", "job")
    spent = ledger.spent("a")[0]
    assert spent > 0.6
    ledger.carry("a", 0.1, "it was less")
    assert ledger.spent("a") == (spent, 1)
    ledger.carry("a", 5.0, "it was more")
    assert ledger.remaining_releases("a", 1e9) == 0
    with pytest.raises(ConfigError, match="epsilon spent"):
        ledger.carry("a", -1.0, "no")


def test_numbers_that_are_no_budget(ledger):
    for wrong in (
        (0.0, 1e-5, "add-remove"),
        (1.0, 2.0, "add-remove"),
        (1.0, 1e-5, "swap"),
        (math.nan, 0.1, "add-remove"),
    ):
        with pytest.raises(ConfigError, match="Expected"):
            ledger.open_budget("c", *wrong)
    for call in (lambda: ledger.spend("c", 0, 1.0, 9.0, "", "job"), lambda: ledger.spent("c")):
        with pytest.raises(UserError, match="Client 'c' has no budget"):
            call()


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ["sensitivity", "sigma"])
def test_numbers_that_are_no_noise_are_refused_by_name(ledger, name, value):
    request = SpendRequest("a", 1, 1.0, 50.0)._replace(**{name: value})
    with pytest.raises(ConfigError, match=f"{name}={value} "):
        ledger.spend(**request._asdict(), mechanism_note="", job="job")
    with pytest.raises(ConfigError, match=f"{name}={value} "):
        ledger.spend_many([SpendRequest("a", 0, 1.0, 50.0), request], "", "job")
    assert ledger.rows() == []


def test_other_odd_numbers(ledger):
    with pytest.raises(ConfigError, match=r"round=1\.5"):
        ledger.spend("a", 1.5, 1.0, 50.0, "", "job")
    for round in (-1, 2**63):
        with pytest.raises(ConfigError, match="Expected the round from 0"):
            ledger.spend("a", round, 1.0, 50.0, "", "job")
    with pytest.raises(BudgetExceeded):
        ledger.spend("a", 0, 1e200, 1.0, "", "job")
    with pytest.raises(UserError):
        ledger.spend("a", 0, 1e300, 1e-300, "", "job")
    assert ledger.rows() == []
    assert ledger.remaining_releases("a", 1e100) == 2**62


def test_append_only(ledger):
    ledger.spend("a", 0, 1.0, 50.0, "note", "job")
    before = ledger.rows()
    columns = "kind, client, job, round, first, second, note, recorded_at, hash"
    attempts = [
        "UPDATE entries SET second = 1e9",
        "DELETE FROM entries",
        f"INSERT OR REPLACE INTO entries ({columns}) VALUES ('release', 'a', 'job', 0, 1.0, 1e9, '', 0, x'')",
        f"INSERT OR REPLACE INTO entries (number, {columns}) VALUES (3, 'release', 'a', 'x', 9, 1.0, 1e9, '', 0, x'')",
        "UPDATE OR IGNORE entries SET round = 5",
        "DELETE FROM head",
        "UPDATE head SET count = 1",
        "INSERT OR REPLACE INTO head VALUES (1, 1, x'')",
    ]
    with closing(sqlite3.connect(ledger.path)) as other:  # any program, with none of our settings
        for attempt in attempts:
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                other.execute(attempt)
        other.rollback()
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            other.execute("INSERT INTO entries VALUES (4, 'release', 'a', 'job', 1, 1.0, 9e999, '', 0, x'')")
    assert ledger.rows() == before


def test_without_the_insert_trigger_replace_would_erase(tmp_path, ledger):
    """Negative control of the test above: SQLite's REPLACE does pass by a trigger on DELETE."""
    ledger.spend("a", 0, 1.0, 50.0, "note", "job")
    ledger.chain.connection.execute("DROP TRIGGER entries_insert")
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        other.execute("INSERT OR REPLACE INTO entries VALUES (3, 'release', 'a', 'job', 0, 1.0, 1e9, '', 0, x'')")
    assert ledger.rows()[0].sigma == 1e9
    with pytest.raises(LedgerDamaged, match="entry 3 was altered"):  # but the next opening sees it
        Ledger(ledger.path)


def test_settings_make_commits_durable(ledger):
    assert ledger.chain.one("PRAGMA journal_mode")[0] == "wal"
    assert ledger.chain.one("PRAGMA synchronous")[0] == 2  # FULL


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 100, "foreign", "torn"])
def test_a_file_that_is_no_ledger_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "ledger.db"
    if content == "foreign":
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE t (x)")
    elif content == "torn":
        with Ledger(path) as ledger:
            ledger.open_budget("a", *BUDGET)
            ledger.spend_many([SpendRequest("a", t, 1.0, 500.0) for t in range(200)], "note", "job")
        whole = path.read_bytes()
        path.write_bytes(whole[:8192] + os.urandom(4096) + whole[12288:])
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"Cannot use the privacy ledger .*left as it is"):
        Ledger(path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["ledger.db"]


def test_a_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(UserError, match="Cannot use the privacy ledger"):
        Ledger(tmp_path / "missing" / "ledger.db")
    with pytest.raises(UserError, match="Cannot use the privacy ledger"):
        Ledger(tmp_path)


def test_batches_are_fast_and_do_what_single_spends_do(tmp_path):
    clients = [f"client-{i}" for i in range(100)]
    z = noise_multiplier_for(1.0, 1e-5, 60, "add-remove")
    assert participations_for(1.0, 1e-5, z, "add-remove") == 60
    with Ledger(tmp_path / "ledger.db") as ledger:
        start = time.process_time()
        ledger.open_budgets(clients, *BUDGET)
        granted = []
        for first in range(0, 100, 25):  # the budgets end in the middle of a batch
            batch = [SpendRequest(c, t, 0.1, 0.1 * z) for t in range(first, first + 25) for c in clients]
            granted += ledger.spend_many(batch, "test", "job")
        assert time.process_time() - start < 10
        assert granted == [True] * 6000 + [False] * 4000
        assert len(ledger.rows()) == 6000
        assert ledger.spent("client-99") == (pytest.approx(1.0, rel=1e-6), 60)


# Real processes.

WORKER = """
import sys, time
from contextlib import nullcontext
from fedpdm.privacy import chain
from fedpdm.privacy.ledger import BudgetExceeded, Ledger, SpendRequest
mode, path, job, z = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
ledger = Ledger(path)
ledger.open_budget("a", 1.0, 1e-5, "add-remove")
if mode == "no transaction":
    chain.one_writer = lambda connection: nullcontext()
    look = Ledger._account
    def slowly(self, client):
        account = look(self, client)
        time.sleep(0.002)
        return account
    Ledger._account = slowly
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    try:
        if mode == "batch":
            ledger.spend_many([SpendRequest("a", number, 1.0, z)], "test", job)
        else:
            ledger.spend("a", number, 1.0, z, "test", job)
    except BudgetExceeded:
        pass
"""


def start(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def hammer(path, mode):
    """Three processes on a budget of forty releases: their errors, and the number of recorded releases."""
    z = noise_multiplier_for(1.0, 1e-5, 40, "add-remove")
    workers = [start(WORKER, mode, path, f"job-{i}", z) for i in range(3)]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    failures = [worker.communicate(timeout=900)[1] for worker in workers]
    with Ledger(path) as ledger:
        return "".join(failures), len(ledger.rows())


@pytest.mark.parametrize("mode", ["single", "batch"])
def test_processes_together_spend_the_budget_and_no_more(tmp_path, mode):
    assert hammer(tmp_path / "ledger.db", mode) == ("", 40)


def test_without_the_transaction_processes_get_into_each_others_way(tmp_path):
    """Negative control: two processes decide from the same entries. The chain, a second fence, then stops one of them."""
    failures, recorded = hammer(tmp_path / "ledger.db", "no transaction")
    assert "append-only" in failures or "UNIQUE" in failures
    assert recorded <= 40


VICTIM = """
import sys, time
from contextlib import nullcontext
from fedpdm.privacy import chain
from fedpdm.privacy.ledger import Ledger
ledger = Ledger(sys.argv[2])
ledger.open_budget("a", 1.0, 1e-5, "add-remove")
if sys.argv[1] == "no commit":
    ledger.chain.connection.execute("BEGIN IMMEDIATE")
    chain.one_writer = lambda connection: nullcontext()
ledger.spend("a", 0, 1.0, 50.0, "test", "job")
print("spent", flush=True)
time.sleep(900)  # the release would leave here
"""


@pytest.mark.parametrize(("mode", "recorded"), [("as it is", 1), ("no commit", 0)])
def test_a_spend_outlives_kill_9_before_the_release(tmp_path, mode, recorded):
    """The second case is the control: a spend that was not committed is lost, and this test would see it."""
    victim = start(VICTIM, mode, tmp_path / "ledger.db")
    assert victim.stdout.readline() == "spent\n"
    victim.kill()
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert ledger.spent("a")[1] == recorded
        if recorded:
            with pytest.raises(AlreadySpent):
                ledger.spend("a", 0, 1.0, 50.0, "test", "job")


def test_power_loss_at_any_byte_of_a_spend_loses_that_spend_alone(tmp_path):
    """Of the last spend, any first part has reached the disk. Its message had not left yet, as the spend comes first."""
    path, lost = tmp_path / "ledger.db", tmp_path / "lost"
    lost.mkdir()
    with Ledger(path) as ledger:
        ledger.open_budget("a", 1.0, 1e-5, "add-remove")
        ledger.spend("a", 0, 1.0, 50.0, "test", "job")
        before = Path(f"{path}-wal").stat().st_size
        ledger.spend("a", 1, 1.0, 50.0, "test", "job")
        main, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    for cut in [*range(before, len(log), 131), len(log) - 1, len(log)]:
        for old in lost.iterdir():
            old.unlink()
        (lost / "ledger.db").write_bytes(main)
        (lost / "ledger.db-wal").write_bytes(log[:cut])
        with Ledger(lost / "ledger.db") as ledger:
            assert [row.round for row in ledger.rows()] == ([0, 1] if cut == len(log) else [0])
            if cut < len(log):
                ledger.spend("a", 1, 1.0, 50.0, "test", "job")
                assert len(ledger.rows()) == 2


def test_a_locked_ledger_is_an_error_that_says_so(ledger):
    ledger.chain.connection.execute("PRAGMA busy_timeout = 50")
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UserError, match="locked"):
            ledger.spend("a", 0, 1.0, 50.0, "note", "job")
        other.execute("ROLLBACK")
    ledger.spend("a", 0, 1.0, 50.0, "note", "job")


FULL = """
import resource, sys
from pathlib import Path
from fedpdm.errors import UserError
from fedpdm.privacy.ledger import Ledger
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    with Ledger(Path(sys.argv[1])):
        pass
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("most", [1000, 6000, 30_000])
def test_a_full_disk_leaves_no_half_of_a_ledger_and_says_what_to_do(tmp_path, most):
    """The system refuses to write beyond so many bytes of a file."""
    command = [sys.executable, "-c", FULL, str(tmp_path / "ledger.sqlite"), str(most)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Free some space" in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
    with Ledger(tmp_path / "ledger.sqlite") as whole:
        assert whole.rows() == []


def test_interleaved_ledgers_see_each_other(tmp_path):
    z = noise_multiplier_for(1.0, 1e-5, 3, "add-remove")
    with Ledger(tmp_path / "ledger.db") as one, Ledger(tmp_path / "ledger.db") as two:
        one.open_budget("a", *BUDGET)
        two.open_budget("a", *BUDGET)
        one.spend("a", 0, 1.0, z, "", "one")
        two.spend("a", 0, 1.0, z, "", "two")
        one.spend("a", 1, 1.0, z, "", "one")
        with pytest.raises(BudgetExceeded):
            two.spend("a", 1, 1.0, z, "", "two")
