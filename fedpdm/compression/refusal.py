"""Reasons to refuse a message from outside."""

from typing import Literal

__all__ = ["Reason", "WireError"]

Reason = Literal[
    "magic",
    "version",
    "length",
    "checksum",
    "vectors",
    "dimension",
    "count",
    "coding",
    "kind",
    "index",
    "not-a-number",
    "infinity",
    "magnitude",
]


class WireError(Exception):
    """A message that is foreign, damaged, or makes a false claim. Nothing of it may be used.

    Parameters
    ----------
    reason : str
        One of the words above, to count refusals by.
    sentence : str
        The expectation and the finding.
    """

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(reason, sentence)  # both, so that it survives pickling
        self.reason = reason

    def __str__(self) -> str:
        return self.args[1]
