"""A ledger reads as it was written, or not at all; a reader who knows a later head detects an older copy."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpdm.errors import UserError
from fedpdm.privacy.chain import Chain, Entry
from fedpdm.privacy.ledger import Ledger, LedgerDamaged, SpendRequest

FLIPS = 3000


def spent(path: Path) -> tuple:
    with Ledger(path) as ledger:
        return ledger.accounts(), ledger.rows()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A ledger of two pages of entries."""
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.open_budget("a", 1.0, 1e-5, "add-remove")
        ledger.spend_many([SpendRequest("a", t, 0.1, 5.0) for t in range(30)], "linearised", "job")
    return path


def flips(content: bytes, count: int, seed: int = 0):
    """The content with one bit changed, `count` times."""
    random = np.random.default_rng(seed)
    for place, bit in zip(random.integers(0, len(content), count), random.integers(0, 8, count), strict=True):
        altered = bytearray(content)
        altered[place] ^= 1 << int(bit)
        yield bytes(altered)


def outcomes(path: Path, contents) -> tuple[int, int]:
    """How many changes were refused, and how many read as before; any other reading fails."""
    true, refused, same = spent(path), 0, 0
    other = path.with_name("other.sqlite")
    for content in contents:
        other.write_bytes(content)
        try:
            assert spent(other) == true, "a changed file read as something else"
            same += 1
        except UserError:
            refused += 1
        for left in path.parent.glob("other.sqlite*"):
            left.unlink()
    return refused, same


def test_no_bit_flip_makes_a_ledger_say_something_else(written: Path) -> None:
    refused, same = outcomes(written, flips(written.read_bytes(), FLIPS))
    assert refused > FLIPS / 20
    assert same > 0  # free space: nothing that is read


def test_without_the_chain_flips_would_pass(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: hashes that are not computed again."""

    def believing(self: Chain) -> None:
        query = "SELECT kind, client, job, round, first, second, note, recorded_at FROM entries ORDER BY number"
        for row in self.connection.execute(query):
            self._learn(Entry(*row))

    monkeypatch.setattr(Chain, "catch_up", believing)
    monkeypatch.setattr(Ledger, "rows", lambda self: [])
    with pytest.raises((AssertionError, KeyError)):
        outcomes(written, flips(written.read_bytes(), FLIPS))


def test_a_cut_ledger_is_refused(written: Path) -> None:
    content = written.read_bytes()
    refused, same = outcomes(written, [content[:size] for size in range(0, len(content), 512)])
    assert same == 0
    assert refused == len(range(0, len(content), 512))


def test_an_older_copy_does_not_hold_a_later_head(tmp_path: Path, written: Path) -> None:
    old = tmp_path / "old.sqlite"
    shutil.copy(written, old)
    with Ledger(written) as ledger:
        ledger.spend("a", 30, 0.1, 5.0, "", "job")
        head, identity = ledger.chain.head, ledger.chain.identity
        assert ledger.chain.holds(head)
    with Ledger(old) as ledger:
        assert ledger.chain.identity == identity
        assert not ledger.chain.holds(head)
        ledger.spend("a", 30, 0.1, 5.0, "", "job")  # the same spend later is not the same entry
        assert not ledger.chain.holds(head)


def test_flips_in_a_log_that_a_crash_left_behind_are_refused_or_show_an_older_copy(tmp_path: Path, written: Path) -> None:
    with Ledger(written) as ledger:
        ledger.spend("a", 30, 0.1, 5.0, "", "job")
        head, true = ledger.chain.head, ledger.accounts()
        whole = [(path.name, path.read_bytes()) for path in (written, written.with_name(written.name + "-wal"))]
    (name, content), (log_name, log) = whole
    seen = {"refused": 0, "older": 0, "same": 0}
    for number, altered in enumerate(flips(log, 150)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_bytes(content)
        (folder / log_name).write_bytes(altered)
        try:
            with Ledger(folder / name) as ledger:
                older = not ledger.chain.holds(head)
                assert older or ledger.accounts() == true
                seen["older" if older else "same"] += 1
        except UserError:
            seen["refused"] += 1
    assert seen["older"] > 0


def test_two_ledgers_never_have_the_same_identity(tmp_path: Path) -> None:
    identities = set()
    for number in range(3):
        with Ledger(tmp_path / f"{number}.sqlite") as ledger:
            identities.add(ledger.chain.identity)
    assert len(identities) == 3


def test_a_ledger_of_the_layout_before_is_refused_with_the_way_out(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "old.sqlite") as connection:
        connection.execute(f"PRAGMA application_id = {0x46504C31}")
        connection.execute("CREATE TABLE budgets (client)")
    connection.close()
    with pytest.raises(LedgerDamaged, match=r"earlier release of fedpdm.*budget accept"):
        Ledger(tmp_path / "old.sqlite")
