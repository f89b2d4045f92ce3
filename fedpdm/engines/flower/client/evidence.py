"""The requests and answers of a node, kept for an audit of its own messages. The server knows all of them.

A file per answered round, if the policy says so (`keep_messages` under `[audit]`): the vectors of the request, the state before
the round, which is a function of released values, and the vectors of the answer.
"""

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpdm.engines.flower.protocol import Request
from fedpdm.runs.folder import atomic_write

__all__ = ["Exchange", "keep_exchange", "exchanges"]

FOLDER = "audit"


class Exchange(NamedTuple):
    """One round, as both sides saw it."""

    round: int
    request: bytes
    state: list[np.ndarray]
    answer: bytes
    standard: bytes = b""  # the means that rows were standardised by


def keep_exchange(folder: Path, request: Request, state: list[np.ndarray], answer: bytes) -> None:
    """Put an answered request on disk.

    Parameters
    ----------
    folder : Path
        The state folder.
    request, state, answer
        The request, the state before the round, and the vectors of the answer.
    """
    content = io.BytesIO()
    leaves: dict[str, Any] = {f"state{place:03d}": leaf for place, leaf in enumerate(state)}
    sent: dict[str, Any] = {"request": _bytes(request.vectors), "standard": _bytes(request.standard)}
    np.savez(content, answer=_bytes(answer), **sent, **leaves)
    path = folder / FOLDER / f"{request.job[:32]}-{request.round:010d}.npz"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    atomic_write(path, content.getvalue())


def exchanges(folder: Path, digest: str) -> list[Exchange]:
    """Return the rounds of a job that are on disk, oldest first.

    Parameters
    ----------
    folder : Path
        The state folder.
    digest : str
        The job.

    Returns
    -------
    list of Exchange
        The rounds.
    """
    found = []
    for path in sorted((folder / FOLDER).glob(f"{digest[:32]}-*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            state = [arrays[name] for name in sorted(arrays.files) if name.startswith("state")]
            sent = {name: arrays[name].tobytes() for name in ("request", "answer", "standard") if name in arrays.files}
            found.append(Exchange(int(path.stem[33:]), state=state, **sent))
    return found


def _bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)
