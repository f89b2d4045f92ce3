"""`fedpdm check` of a client's state folder: it names what is damaged, and what can be done."""

import json
import shutil
import sqlite3
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from flower_kit import coordinator, give, job_of, make_nodes, one_round

from fedpdm.cli.check import check_command
from fedpdm.engines.flower.client.books import BudgetClosed, open_books
from fedpdm.engines.flower.client.check import check_state
from fedpdm.engines.flower.client.client import introduce
from fedpdm.engines.flower.client.identity import KEY_FILE
from fedpdm.engines.flower.client.store import open_store
from fedpdm.engines.flower.protocol import Meeting
from fedpdm.engines.flower.server.curvature import Curvatures
from fedpdm.engines.flower.server.evaluations import Evaluations
from fedpdm.engines.flower.server.known_keys import KnownKeys
from fedpdm.engines.flower.server.standard import Standards
from fedpdm.errors import UserError
from fedpdm.privacy.ledger import Budget, Ledger
from fedpdm.runs.check import check_run
from fedpdm.runs.integrity import sealed

DAMAGE = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 3],
    "zeros": lambda content: bytes(len(content)),
    "noise": lambda content: np.random.default_rng(0).bytes(len(content)),
    "another file": lambda content: b'{"round": "one"}\n',
}


@pytest.fixture(scope="module")
def state(tmp_path_factory) -> Path:
    """The folder of a client that has met a server and has sent one message."""
    folder = tmp_path_factory.mktemp("state")
    job = job_of()
    nodes = make_nodes(folder, job=job)
    for node in nodes:
        give(node, job)
        assert not introduce(node, Meeting(job.digest)).refused
    one_round(coordinator(folder / "run", job), nodes)
    for name in ("ledger.sqlite", "state.sqlite"):
        sqlite3.connect(nodes[0].state_dir / name).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return nodes[0].state_dir


def test_a_whole_folder_has_no_fault(state, capsys):
    check_command(state, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert {"state.sqlite", "ledger.sqlite", KEY_FILE} <= {finding["file"] for finding in found}
    assert [finding["fault"] for finding in found] == [None] * len(found)


def test_a_server_does_not_go_on_from_a_damaged_file(tmp_path):
    """Those that it reads when a run is continued."""
    job = job_of()
    readers = {"keys.json": KnownKeys, "standard.json": partial(Standards, job), "curvature.json": partial(Curvatures, job)}
    for name, reader in readers.items():
        for kind, damage in DAMAGE.items():
            (tmp_path / name).write_bytes(damage(sealed({"0": "key"})))
            with pytest.raises(UserError, match=f"{name} is (broken|not valid JSON)"):
                reader(tmp_path)
            assert any(finding.fault for finding in check_run(tmp_path) if finding.file == name), (name, kind)
    (tmp_path / "evaluations.jsonl").write_bytes(b"\xff{}\n")
    with pytest.raises(UserError, match=r"evaluations.jsonl is broken"):
        Evaluations(job, tmp_path).rows()


def test_every_damaged_file_is_named_with_its_remedy(state, capsys):
    for finding in check_state(state):
        path, whole = state / finding.file, (state / finding.file).read_bytes()
        for kind, damage in DAMAGE.items():
            path.write_bytes(damage(whole))
            if path.suffix == ".key" and len(damage(whole)) == len(whole):
                continue  # any 32 bytes are a key: only the server can tell that it is another one
            with pytest.raises(UserError, match=f"not as they were written: .*{path.name}"):
                check_command(state)
            assert "what to do: " in capsys.readouterr().out, (path, kind)
        path.write_bytes(whole)
    assert not [finding for finding in check_state(state) if finding.fault]


def test_a_ledger_that_lacks_messages_is_named_before_the_node_refuses(state, tmp_path):
    """Missing, or a copy from before the last message: a node counts its budget as used up, and the check says so too."""
    folder = tmp_path / "state"
    shutil.copytree(state, folder)
    (folder / "ledger.sqlite").unlink()
    (found,) = [finding for finding in check_state(folder) if finding.fault]
    assert (found.file, found.fault) == ("ledger.sqlite", "it is missing, although messages have left")
    assert not (folder / "ledger.sqlite").exists()  # it changes nothing
    Ledger(folder / "ledger.sqlite").close()
    (found,) = [finding for finding in check_state(folder) if finding.fault]
    assert found.file == "ledger.sqlite"
    assert "older copy" in found.fault
    policy = Budget(epsilon=1.0, delta=1e-5, relation="add-remove")
    with open_store(folder) as store, pytest.raises(BudgetClosed, match="older copy"), open_books(folder, store, policy, None):
        pass


def test_the_file_by_which_a_folder_is_known_may_be_the_one_that_is_missing(state, tmp_path, capsys):
    folder = tmp_path / "state"
    shutil.copytree(state, folder)
    (folder / "state.sqlite").unlink()
    with pytest.raises(UserError, match=r"not as they were written: state\.sqlite"):
        check_command(folder)
    run = tmp_path / "run"
    run.mkdir()
    (run / "SHA256SUMS").write_text("")
    with pytest.raises(UserError, match=r"not as they were written: manifest\.json"):
        check_command(run)
    with pytest.raises(UserError, match="holds neither a run"):
        check_command(tmp_path)
    assert "take the run from a backup" in capsys.readouterr().out


def test_the_sums_of_a_member_are_looked_at(state, tmp_path):
    folder = tmp_path / "state"
    shutil.copytree(state, folder)
    (folder / "sums.sqlite").write_bytes(b"no database" * 100)
    assert [finding.file for finding in check_state(folder) if finding.fault] == ["sums.sqlite"]
