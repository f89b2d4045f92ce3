"""Whether files are what was written: checksums inside of models and checkpoints, and a list of those of a finished run."""

import contextlib
import hashlib
import json
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedpdm.errors import UserError

__all__ = [
    "CHECKSUM",
    "SUMS",
    "changed_files",
    "pack_arrays",
    "read_arrays",
    "read_json",
    "read_sealed",
    "require_plain",
    "require_unchanged",
    "sealed",
    "sums_of",
]

SUMS = "SHA256SUMS"  # `sha256sum --check` reads it too
CHECKSUM = "sha256"
ENTRY = "fedpdm"  # one entry only: safetensors writes several in an order that differs from process to process


def require_plain(paths: Iterable[Path]) -> None:
    """Refuse a pipe, a device or a folder in the place of a file: to read it could take forever, or all memory.

    Parameters
    ----------
    paths : iterable of Path
        Files, which need not be there.

    Raises
    ------
    UserError
        With the first that is none.
    """
    for path in paths:
        with contextlib.suppress(OSError):  # it is not there or not for this user: the line that opens it says so
            if not stat.S_ISREG(path.stat().st_mode):
                raise UserError(f"{path} is no file, but a folder, a pipe or a device: move it away, or take it from a backup.")


def _checksum(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(repr((name, array.shape, array.dtype.str)).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def pack_arrays(arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> bytes:
    """Return the bytes of a safetensors file with arrays, what is said about them, and a checksum of both.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        The arrays by name.
    about : mapping
        What can be written as JSON.

    Returns
    -------
    bytes
        The content of the file.
    """
    plain = json.loads(json.dumps(about))
    text = json.dumps({**plain, CHECKSUM: _checksum(arrays, plain)}, sort_keys=True)
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()}, {ENTRY: text})


def read_arrays(path: Path, remedy: str, unchecked: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays of a file and what is said about them; every damage is a UserError with the remedy.

    A model of an earlier release has no checksum; its arrays are taken as they are.

    Parameters
    ----------
    path : Path
        The file.
    remedy : str
        The end of the error's sentence: what the user can do.
    unchecked : bool
        Accept a file without a checksum.

    Returns
    -------
    tuple
        Arrays by name, and the facts about them.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            about = json.loads((file.metadata() or {}).get(ENTRY, "{}"))
        if not isinstance(about, dict):
            raise ValueError("what is said about the arrays is not a table")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}): {remedy}.") from None
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise UserError(f"{path} is broken ({' '.join(str(error).split())[:200]}): {remedy}.") from None
    expected = about.pop(CHECKSUM, None)
    if expected != _checksum(arrays, about) and not (unchecked and expected is None):
        raise UserError(f"{path} is broken (its content does not have its checksum): {remedy}.")
    return arrays, about


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the table in a JSON file; every damage is a UserError with the remedy.

    Parameters
    ----------
    path : Path
        The file.
    remedy : str
        The end of the sentence of an error.

    Returns
    -------
    dict
        The table.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): {remedy}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): {remedy}.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is broken (it holds no table of keys and values): {remedy}.")
    return value


def sealed(table: Mapping[str, Any]) -> bytes:
    """Return the bytes of a JSON file with a table and its checksum.

    Parameters
    ----------
    table : mapping
        What can be written as JSON, with words as keys.

    Returns
    -------
    bytes
        The content of the file.
    """
    return (json.dumps({**table, CHECKSUM: _checksum({}, table)}, indent=1, sort_keys=True) + "\n").encode()


def read_sealed(path: Path, remedy: str) -> dict[str, Any]:
    """Return the table in a file that `sealed` made; every damage is a UserError with the remedy.

    Parameters
    ----------
    path, remedy
        As in `read_json`.

    Returns
    -------
    dict
        The table.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "keys.json"
    >>> _ = file.write_bytes(sealed({"0": "key"}))
    >>> read_sealed(file, "take it from a backup")
    {'0': 'key'}
    """
    table = read_json(path, remedy)
    if table.pop(CHECKSUM, None) != _checksum({}, table):
        raise UserError(f"{path} is broken (its content does not have its checksum): {remedy}.")
    return table


def sums_of(folder: Path, names: list[str]) -> bytes:
    """Return the lines of `SHA256SUMS` for those of the files that exist.

    Parameters
    ----------
    folder : Path
        A run folder.
    names : list of str
        Names of files.

    Returns
    -------
    bytes
        The lines.
    """
    here = [name for name in names if (folder / name).is_file()]
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in here]
    return "".join(lines).encode()


def changed_files(folder: Path) -> list[str]:
    """Return a line for every file that is not what it was when the run ended; a run without the list has none.

    Parameters
    ----------
    folder : Path
        A run folder.

    Returns
    -------
    list of str
        One sentence per fault.
    """
    if not (folder / SUMS).is_file():
        return []
    wrong = []
    try:
        lines = (folder / SUMS).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return [f"{SUMS} cannot be read"]
    listed: set[str] = set()
    for line in lines:
        checksum, _, name = line.partition("  ")
        if len(checksum) != 64 or not name or "/" in name or name in listed:
            wrong.append(f"{SUMS} has a line that it was not written with")
            continue
        listed.add(name)
        try:
            require_plain([folder / name])
            content = (folder / name).read_bytes()
        except OSError as error:
            wrong.append(f"{name} cannot be read ({error.strerror})")
            continue
        if hashlib.sha256(content).hexdigest() != checksum:
            wrong.append(f"{name} was changed since the run ended")
    if "summary.json" not in listed:
        wrong.append(f"{SUMS} is not whole")
    return wrong


def require_unchanged(folder: Path) -> None:
    """Refuse a finished run of which a file was changed.

    Parameters
    ----------
    folder : Path
        A run folder.
    """
    if wrong := changed_files(folder):
        raise UserError(f"{folder}: {wrong[0]}: take the run from a backup, or run again. `fedpdm check {folder}` says more.")
