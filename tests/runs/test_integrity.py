"""The corruption matrix: every file, every command, twelve kinds of damage. No traceback, no silent change."""

import contextlib
import io
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpdm.cli.main import app, main
from fedpdm.config import load_config
from fedpdm.errors import UserError
from fedpdm.runs.check import check_run
from fedpdm.runs.folder import RunFolder, atomic_write
from fedpdm.runs.integrity import read_sealed, sealed
from fedpdm.runs.saved import load_model, plain_cell
from fedpdm.runs.spent import read_accounts
from fedpdm.runs.train import train

SETTINGS = ["data.clients=4", "data.partition=iid", "data.label=sick", "data.features=raw", "data.basis=none"]
SETTINGS += [
    "rounds.participants=2",
    "rounds.total=2",
    "metrics.diagnose_every=1",
    "local.steps=2",
    "compression.values=float32",
]
ROWS = "rows.csv"
SCHEMA = """label = "sick"
classes = ["no", "yes"]
[columns.age]
kind = "number"
low = 0
high = 90
[columns.town]
kind = "category"
levels = ["b"]
baseline = "a"
"""
COMMANDS = {
    "report": ["report", "RUN", "--out", "OUT"],
    "predict": ["predict", "RUN", ROWS],
    "export": ["export", "RUN"],
    "resume": ["run", "--resume", "RUN", "--quiet"],
    "check": ["check", "RUN"],
    "spent": ["privacy", "spent", "RUN"],
}
READS = {"manifest.json", "metrics.jsonl", "model.safetensors", "summary.json", "clients.json", "SHA256SUMS"}
READS |= {"schema.toml", "checkpoint.safetensors", "ledger.sqlite"}


def flip(content: bytes, place: float) -> bytes:
    where = min(int(place * len(content)), len(content) - 1)
    return content[:where] + bytes([content[where] ^ 1]) + content[where + 1 :]


DAMAGE = {
    "empty": lambda content: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "last byte lost": lambda content: content[:-2],
    "bit at the start": lambda content: flip(content, 0.0),
    "bit early": lambda content: flip(content, 0.13),
    "bit in the middle": lambda content: flip(content, 0.5),
    "bit late": lambda content: flip(content, 0.9),
    "zeros": lambda content: bytes(len(content)),
    "noise": lambda content: np.random.default_rng(0).bytes(len(content)),
    "doubled": lambda content: content * 2,
    "another file": lambda content: b'{"round": "one", "config": 7}\n',
    "deep": lambda content: b"[" * 100_000,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished private run on a table, with every file that a simulation writes, and rows to predict."""
    folder = tmp_path_factory.mktemp("matrix")
    random = np.random.default_rng(0)
    lines = ["age,town,sick", *(f"{random.integers(90)},{'ab'[i % 2]},{['no', 'yes'][i % 3 == 0]}" for i in range(60))]
    (folder / ROWS).write_text("\n".join(lines) + "\n")
    (folder / "given.toml").write_text(SCHEMA)
    where = [f"data.name={folder / ROWS}", f"data.schema_file={folder / 'given.toml'}"]
    train(load_config("demo", [*SETTINGS, *where]), folder / "run", progress=False)
    return folder / "run"


def call(command: str, folder: Path, rows: Path) -> tuple[str, str]:
    """What a command printed, and its error; anything but a UserError is a traceback, and fails the test."""
    words = {"RUN": str(folder), "OUT": str(folder.parent / "report.html"), ROWS: str(rows)}
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            app([words.get(word, word) for word in COMMANDS[command]], standalone_mode=False)
        except UserError as error:
            return out.getvalue(), str(error)
    return out.getvalue(), ""


@pytest.mark.parametrize("file", sorted(READS))
def test_every_damage_is_one_line_or_changes_nothing(file, run, tmp_path):
    rows = run.parent / ROWS
    whole = {command: call(command, run, rows) for command in COMMANDS}
    assert [error for _, error in whole.values() if error] == []
    for kind, damage in DAMAGE.items():
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        (copy / file).write_bytes(damage((run / file).read_bytes()))
        for command in COMMANDS:
            said, error = call(command, copy, rows)
            assert "\n" not in error, (kind, command)
            if not error:  # then the answer must be that of the whole run
                said = said.replace(str(copy), str(run)).replace(str(copy.parent), str(run.parent))
                assert said == whole[command][0], (kind, command)
        if file != "ledger.sqlite":  # a database has bytes that mean nothing; its entries have hashes
            assert any(finding.fault for finding in check_run(copy)), kind


@pytest.mark.parametrize("file", ["manifest.json", "metrics.jsonl", "clients.json", "summary.json"])
def test_the_check_calls_no_run_usable_that_predict_refuses(file, run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / file).write_bytes(b"{")
    with pytest.raises(UserError):
        load_model(folder)
    (found,) = [finding for finding in check_run(folder) if finding.fault]
    assert found.file == file
    assert "can be used" not in found.remedy
    assert "take it from a backup" in found.remedy


def test_a_ledger_that_is_missing_is_named(run, tmp_path):
    """The model can be used, but nobody can say what was spent: not that nothing was."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "ledger.sqlite").unlink()
    (found,) = [finding for finding in check_run(folder) if finding.fault]
    assert (found.file, found.fault) == ("ledger.sqlite", "it is missing")
    with pytest.raises(UserError, match=r"ledger\.sqlite is missing"):
        read_accounts(folder)
    load_model(folder)


def test_a_sealed_table_is_whole_or_refused(tmp_path):
    """What a server keeps about its clients: keys, rosters, means, curvatures. Every damage, and every flipped bit."""
    path, table = tmp_path / "keys.json", {"0": "a1", "1": [0.5, -1e-7]}
    path.write_bytes(whole := sealed(table))
    assert read_sealed(path, "take it from a backup") == table
    flipped = [
        bytes([*whole[:place], whole[place] ^ 1 << bit, *whole[place + 1 :]]) for place in range(len(whole)) for bit in (0, 4)
    ]
    for content in [*(damage(whole) for damage in DAMAGE.values()), *flipped]:
        path.write_bytes(content)
        with contextlib.suppress(UserError):
            assert read_sealed(path, "take it from a backup") == table, content


def test_a_run_under_way_goes_on_from_a_whole_checkpoint_alone(run, tmp_path):
    for kind, damage in DAMAGE.items():
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        for name in ("summary.json", "SHA256SUMS", "model.safetensors"):
            (copy / name).unlink()
        (copy / "checkpoint.safetensors").write_bytes(damage((run / "checkpoint.safetensors").read_bytes()))
        _, error = call("resume", copy, run.parent / ROWS)
        assert "checkpoint.safetensors is broken" in error, kind
        assert "\n" not in error


def test_what_the_machine_does_not_allow_is_one_line(run, tmp_path, monkeypatch, capsys):
    """Another user's folder, and a program that cannot write: as a user without rights."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for path in [*copy.iterdir(), copy]:
        path.chmod(0)
    user = os.geteuid()
    for command in ("report", "predict", "export", "check", "spent", "resume"):
        words = {"RUN": str(copy), "OUT": str(tmp_path / "report.html"), ROWS: str(run.parent / ROWS)}
        monkeypatch.setattr(sys, "argv", ["fedpdm", *(words.get(word, word) for word in COMMANDS[command])])
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            os.seteuid(user)
        said = capsys.readouterr()
        assert ended.value.code == 2, (command, said)
        assert len(said.err.strip().splitlines()) == 1, (command, said)
        assert "ermission denied" in said.err, (command, said)


@pytest.mark.parametrize("file", sorted(READS))
def test_a_pipe_a_device_or_a_folder_in_the_place_of_a_file_is_one_line(file, run, tmp_path):
    """To open a pipe waits for a writer, and to read /dev/zero takes all memory."""
    for kind in ("pipe", "device", "folder"):
        copy = tmp_path / kind
        shutil.copytree(run, copy)
        (copy / file).unlink()
        if kind == "pipe":
            os.mkfifo(copy / file)
        elif kind == "device":
            (copy / file).symlink_to("/dev/zero")
        else:
            (copy / file).mkdir()
        for command in COMMANDS:
            _, error = call(command, copy, run.parent / ROWS)
            assert f"{file} is no file" in error or "no run" in error or "neither a run (manifest.json)" in error, (
                kind,
                command,
            )
            assert "\n" not in error


def test_a_lock_that_is_a_link_does_not_cut_the_file_that_it_leads_to(run, tmp_path):
    copy, other = tmp_path / "copy", tmp_path / "diary.txt"
    shutil.copytree(run, copy)
    other.write_text("dear diary")
    (copy / ".lock").unlink()
    (copy / ".lock").symlink_to(other)
    with pytest.raises(UserError, match="cannot be written"):
        RunFolder.reopen(copy)
    assert other.read_text() == "dear diary"


def test_a_checkpoint_with_any_bit_flipped_is_refused(tmp_path):
    folder = RunFolder.create(tmp_path / "run", load_config("plain"), {})
    state = {"x": np.arange(6, dtype=np.float32), "n": np.int32(3)}
    folder.save_checkpoint(state, 4, "settings")
    whole = folder.checkpoint_path.read_bytes()
    assert folder.load_checkpoint(state, "settings")[1] == 4
    for place in range(len(whole)):
        folder.checkpoint_path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(UserError, match="checkpoint"):
            folder.load_checkpoint(state, "settings")
    folder.close()


def test_power_loss_at_any_write_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    """The process dies in the middle of every system call of a write in turn."""
    path = tmp_path / "file"
    calls = ["open", "fsync", "replace"]
    for last in range(4):
        atomic_write(path, b"old")
        count = [0]

        def dying(name, real, count=count, last=last):
            def call(*arguments, **named):
                if name in calls and count[0] == last:
                    raise KeyboardInterrupt  # stands for the end of the process: nothing is cleaned up behind it
                count[0] += 1
                return real(*arguments, **named)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", dying("fsync", os.fsync))
            patch.setattr(Path, "replace", dying("replace", Path.replace))
            with contextlib.suppress(KeyboardInterrupt):
                atomic_write(path, b"new")
        assert path.read_bytes() in (b"old", b"new")


def test_metrics_that_were_cut_anywhere_lose_the_last_line_only(tmp_path):
    folder = RunFolder.create(tmp_path / "run", load_config("plain"), {})
    folder.append([{"round": 1, "x": 0.5}, {"round": 2, "x": 0.25}])
    whole = folder.metrics_path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(len(whole) + 1):
        folder.metrics_path.write_bytes(whole[:cut])
        assert len(folder.rows()) in ((2,) if cut >= len(whole) - 1 else (1,) if cut >= first - 1 else (0,))
    folder.close()


def test_a_full_disk_is_one_line_and_leaves_no_half_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        RunFolder.create(tmp_path / "run", load_config("plain"), {})
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("cell", "plain"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-2.5e3", "-2.5e3"),
        ("+x", "'+x"),
        ("\tx", "'\tx"),
        ("word", "word"),
        ("", ""),
    ],
)
def test_cells_that_a_spreadsheet_would_run_are_quoted(cell, plain):
    assert plain_cell(cell) == plain
