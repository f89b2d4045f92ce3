"""Files of public rows for a basis: made from a table or from images, and kept in the cache under their digest.

A job names such a file by its digest (`data.basis = "sha256:..."`). So all nodes have the same basis, or none.
"""

import gzip
import hashlib
import io
import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedpdm.choices.words import DRAWINGS, PRIVATE_BASIS
from fedpdm.config import Config
from fedpdm.data.encoding import encode
from fedpdm.data.schema import Schema
from fedpdm.data.sources import cache_dir
from fedpdm.data.tables import read_table
from fedpdm.errors import ConfigError, DataError

__all__ = ["BY_DIGEST", "basis_path", "is_file", "is_pinned", "keep_public_rows", "public_digest", "public_rows"]
__all__ += ["read_public_rows", "with_basis_pinned"]

BY_DIGEST = "sha256:"
IMAGES = b"\x00\x00\x08\x03"  # IDX: unsigned bytes, three dimensions
MOST_BYTES = 2**28


def is_pinned(basis: str) -> bool:
    """Return whether a basis is named by the digest of a file.

    Parameters
    ----------
    basis : str
        data.basis of the settings.

    Returns
    -------
    bool
        True for "sha256:" and 64 hexadecimal digits.
    """
    name = basis.removeprefix(BY_DIGEST)
    return basis.startswith(BY_DIGEST) and len(name) == 64 and not set(name) - set("0123456789abcdef")


def basis_path(basis: str) -> Path:
    """Return the file of a basis; one that is named by a digest is checked.

    Parameters
    ----------
    basis : str
        A path, or "sha256:" and a digest.

    Returns
    -------
    Path
        The file.
    """
    if not is_pinned(basis):
        return Path(basis)
    path = cache_dir() / "basis" / f"{basis.removeprefix(BY_DIGEST)}.npz"
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        found = ""
    if found != path.stem:
        raise ConfigError(
            f"data.basis={basis} is a file that is not in the cache, or that was changed there: get it from the maker of the "
            "settings, and store it with `fedpdm data basis FILE`."
        )
    return path


def is_file(basis: str) -> bool:
    """Return whether a basis is the path of a file.

    Parameters
    ----------
    basis : str
        data.basis of the settings.

    Returns
    -------
    bool
        False for a word, and for a digest.
    """
    return basis not in ("none", "auto", PRIVATE_BASIS, *DRAWINGS) and not is_pinned(basis)


def with_basis_pinned(config: Config) -> Config:
    """Name a file of public rows by its digest instead of its path, and store it: a saved model needs the same rows for ever.

    Parameters
    ----------
    config : Config
        The settings.

    Returns
    -------
    Config
        The settings with `data.basis = "sha256:..."`, if it was a file.
    """
    if not is_file(config.data.basis):
        return config
    name = keep_public_rows(_npz_rows(Path(config.data.basis)))
    return config.model_copy(update={"data": config.data.model_copy(update={"basis": name})})


def read_public_rows(basis: str, columns: int) -> np.ndarray:
    """Read the public examples of a basis.

    Parameters
    ----------
    basis : str
        An NPZ file with an array `features` [rows, columns]: public rows before the map, pixels and numbers in [0, 1]. Or its
        digest.
    columns : int
        Number of columns that the map expects, without the bias.

    Returns
    -------
    ndarray
        [rows, columns], float32.
    """
    try:
        rows = _npz_rows(basis_path(basis))
        _check_rows(rows)
    except DataError as error:
        raise ConfigError(
            f"data.basis={basis}: {error} Give an .npz file with an array `features` [rows, {columns}], or one of none, auto, "
            f"{', '.join(DRAWINGS)}."
        ) from None
    if rows.shape[1] != columns:
        raise ConfigError(
            f"data.basis={basis}: expected `features` of shape [rows, {columns}], got {list(rows.shape)}: give one row per "
            "public example, with the columns that the model is trained on."
        )
    return rows


def public_digest(basis: str) -> str:
    """Return a digest of a public file's content.

    Parameters
    ----------
    basis : str
        The path of the file, or its digest.

    Returns
    -------
    str
        SHA-256, in hexadecimal.
    """
    try:
        return hashlib.sha256(basis_path(basis).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"data.basis={basis} cannot be read: {error.strerror}. Use none, auto, {', '.join(DRAWINGS)}, or an .npz file."
        ) from None


def public_rows(path: Path, schema: Schema | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Read public rows as a map sees them.

    Parameters
    ----------
    path : Path
        A table (with its schema), images as an IDX file (also packed by gzip), or an NPZ file with an array `features`.
    schema : Schema or None
        The columns of the table.

    Returns
    -------
    rows : ndarray
        [rows, columns] float32 in [0, 1], without the bias.
    notes : tuple of str
        Counts of a table's values that did not fit.
    """
    if schema is not None:
        found = encode(schema, read_table(str(path)), labelled=False)
        return (found.features[:, :-1] if schema.bias else found.features), found.notes
    return _npz_rows(path) if path.suffix == ".npz" else _idx_rows(path), ()


def _npz_rows(path: Path) -> np.ndarray:
    try:
        if path.is_file() and not zipfile.is_zipfile(path):  # NumPy would take it for something else
            raise ValueError("it is no NPZ file")
        with np.load(path, allow_pickle=False) as arrays:
            return np.asarray(arrays["features"], np.float32)
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{path} cannot be read as public rows ({reason}).") from None


def _idx_rows(path: Path) -> np.ndarray:
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read as public rows ({error}).") from None
    sizes = [int.from_bytes(content[place : place + 4], "big") for place in (4, 8, 12)]
    if content[:4] != IMAGES or len(content) != 16 + int(np.prod(sizes, dtype=np.int64)):
        raise DataError(
            f"{path} is neither an .npz file nor images in the IDX format: a table needs its schema, --schema FILE."
        )
    return np.frombuffer(content, np.uint8, offset=16).reshape(sizes[0], -1).astype(np.float32) / 255


def _check_rows(rows: np.ndarray) -> None:
    """Refuse what no map can have got: maps see pixels and numbers in [0, 1]."""
    if rows.ndim != 2 or len(rows) < 2 or rows.nbytes > MOST_BYTES:
        raise DataError(
            f"Expected at least 2 public rows [rows, columns] of at most {MOST_BYTES} bytes, got {list(rows.shape)}."
        )
    if not np.isfinite(rows).all() or rows.min() < 0 or rows.max() > 1:
        found = f"{rows.min():.4g} to {rows.max():.4g}" if np.isfinite(rows).all() else "some that are not finite"
        raise DataError(
            f"Expected public rows with numbers in [0, 1], and there are {found}: divide pixels by 255, and let `fedpdm data "
            "basis TABLE --schema FILE` scale the columns of a table."
        )


def keep_public_rows(rows: np.ndarray) -> str:
    """Store public rows in the cache.

    Parameters
    ----------
    rows : ndarray
        [rows, columns].

    Returns
    -------
    str
        The name for data.basis: "sha256:" and the digest of the file, which is the same for the same rows.
    """
    _check_rows(rows)
    file = io.BytesIO()
    np.savez(file, features=rows.astype(np.float32))  # the dates inside are constant
    digest = hashlib.sha256(file.getvalue()).hexdigest()
    path = cache_dir() / "basis" / f"{digest}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.partial")  # two processes may store the same rows
    temporary.write_bytes(file.getvalue())
    temporary.replace(path)
    return BY_DIGEST + digest
