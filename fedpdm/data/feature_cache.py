"""Store computed features on disk, under a hash of everything that they depend on, so that a slow map runs once."""

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedpdm.data.sources import cache_dir

__all__ = ["content_key", "feature_dir", "is_stored", "remember"]


def feature_dir() -> Path:
    """Return the folder of stored features. You may delete it at any time.

    Returns
    -------
    Path
        The folder.
    """
    return cache_dir() / "features"


def content_key(array: np.ndarray, *parts: object) -> str:
    """Hash an array and everything else that the features depend on.

    Parameters
    ----------
    array : ndarray
        The features before the map.
    *parts : object
        The map's name, version and options.

    Returns
    -------
    str
        SHA-256, in hexadecimal.
    """
    return _digest(array, repr(parts)).hex()


def is_stored(key: str) -> bool:
    """Tell whether there is an array under a key.

    Parameters
    ----------
    key : str
        From `content_key`.

    Returns
    -------
    bool
        True if a file exists, which may be broken.
    """
    return _path(key).is_file()


def remember(key: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the array that is stored under a key, or compute and store it.

    Parameters
    ----------
    key : str
        From `content_key`.
    compute : callable
        Computes the array if there is none, or if its file is broken.

    Returns
    -------
    ndarray
        The array.
    """
    path = _path(key)
    kept = _read(path)
    if kept is None:
        kept = compute()
        _write(path, kept)
    return kept


def _path(key: str) -> Path:
    return feature_dir() / f"{key}.features"


def _digest(array: np.ndarray, words: str = "") -> bytes:
    found = hashlib.sha256(f"{array.shape} {array.dtype} {words}".encode())
    found.update(np.ascontiguousarray(array).data)
    return found.digest()


def _read(path: Path) -> np.ndarray | None:
    try:
        with path.open("rb") as stream:
            expected = stream.read(32)
            array = np.load(stream, allow_pickle=False)
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, MemoryError) as error:
        return _drop(path, str(error))
    return array if _digest(array) == expected else _drop(path, "its checksum is wrong")


def _drop(path: Path, reason: str) -> None:
    print(f"{path} is broken ({reason}): removed, computed again", file=sys.stderr)
    with contextlib.suppress(OSError):
        path.unlink()


def _write(path: Path, array: np.ndarray) -> None:
    """Store the array. The file appears whole or not at all, even if another process writes at the same time."""
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as stream:
            part = Path(stream.name)
            _fill(stream, array)
        part.replace(path)
    except OSError as error:
        print(f"cannot store features in {path.parent} ({error}); set FEDPDM_CACHE to a folder with space", file=sys.stderr)
        if part:
            part.unlink(missing_ok=True)


def _fill(stream: "BinaryIO | tempfile._TemporaryFileWrapper[bytes]", array: np.ndarray) -> None:
    stream.write(_digest(array))
    np.save(stream, array, allow_pickle=False)
    stream.flush()
    os.fsync(stream.fileno())  # after a crash there must be no name without its content
