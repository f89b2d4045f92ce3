"""Files of public rows for a basis: made from a table or from images, and kept in the cache under their digest.

A job names such a file by its digest (`data.basis = "sha256:..."`). So all nodes have the same basis, or none.
"""

import gzip
import hashlib
import io
from pathlib import Path

import numpy as np

from fedpdm.data.encoding import encode
from fedpdm.data.schema import Schema
from fedpdm.data.sources import cache_dir
from fedpdm.data.tables import read_table
from fedpdm.errors import ConfigError, DataError

__all__ = ["BY_DIGEST", "basis_path", "is_pinned", "keep_public_rows", "public_rows"]

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


def public_rows(path: Path, schema: Schema | None) -> np.ndarray:
    """Read public rows as a map sees them.

    Parameters
    ----------
    path : Path
        A table (with its schema), images as an IDX file (also packed by gzip), or an NPZ file with an array `features`.
    schema : Schema or None
        The columns of the table.

    Returns
    -------
    ndarray
        [rows, columns] float32 in [0, 1], without the bias.
    """
    if schema is not None:
        features = encode(schema, read_table(str(path)), labelled=False).features
        return features[:, :-1] if schema.feature_names[-1] == "bias" else features
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return np.asarray(arrays["features"], np.float32)
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} cannot be read as public rows: {error}.") from None
    sizes = [int.from_bytes(content[place : place + 4], "big") for place in (4, 8, 12)]
    if content[:4] != IMAGES or len(content) != 16 + int(np.prod(sizes, dtype=np.int64)):
        raise DataError(
            f"{path} is neither an .npz file nor images in the IDX format: a table needs its schema, --schema FILE."
        )
    return np.frombuffer(content, np.uint8, offset=16).reshape(sizes[0], -1).astype(np.float32) / 255


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
    if rows.ndim != 2 or not np.isfinite(rows).all() or rows.nbytes > MOST_BYTES:
        raise DataError(f"Expected finite public rows [rows, columns] of at most {MOST_BYTES} bytes, got {list(rows.shape)}.")
    file = io.BytesIO()
    np.savez(file, features=rows.astype(np.float32))  # the dates inside are constant
    digest = hashlib.sha256(file.getvalue()).hexdigest()
    path = cache_dir() / "basis" / f"{digest}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    temporary.write_bytes(file.getvalue())
    temporary.replace(path)
    return BY_DIGEST + digest
