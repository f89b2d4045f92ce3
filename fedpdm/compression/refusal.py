"""Why a message from outside is refused."""

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
    """A message that is not one of ours, is damaged, or claims what cannot be. Nothing of it may be used.

    Parameters
    ----------
    reason : str
        One of the words above, to count refusals by.
    sentence : str
        What was expected and what was found.
    """

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(reason, sentence)  # both, so that it survives pickling
        self.reason = reason

    def __str__(self) -> str:
        return self.args[1]
