"""The corruption matrix: every file, every command, twelve kinds of damage. No traceback, no silent change."""

import contextlib
import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedpdm.cli.main import app
from fedpdm.config import load_config
from fedpdm.errors import UserError
from fedpdm.runs.check import check_run
from fedpdm.runs.folder import RunFolder, atomic_write
from fedpdm.runs.saved import plain_cell
from fedpdm.runs.train import train

SETTINGS = ["data.name=digits", "data.clients=6", "rounds.participants=3", "rounds.total=2", "metrics.diagnose_every=1"]
ROWS = "digits.csv"
COMMANDS = {
    "report": ["report", "RUN", "--out", "OUT"],
    "predict": ["predict", "RUN", ROWS],
    "export": ["export", "RUN"],
    "resume": ["run", "--resume", "RUN", "--quiet"],
    "check": ["check", "RUN"],
}
READS = {"manifest.json", "metrics.jsonl", "model.safetensors", "summary.json", "clients.json", "SHA256SUMS"}


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
    """A finished run of digits, and rows to predict."""
    folder = tmp_path_factory.mktemp("matrix")
    train(load_config("plain", SETTINGS), folder / "run", progress=False)
    from sklearn.datasets import load_digits

    digits = load_digits()
    names = [str(name) for name in digits.feature_names]
    lines = [",".join(names), *(",".join(str(value) for value in row) for row in digits.data[:3])]
    (folder / ROWS).write_text("\n".join(lines) + "\n")
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
                assert said.replace(str(copy), str(run)) == whole[command][0], (kind, command)
        assert any(finding.fault for finding in check_run(copy)), kind


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
