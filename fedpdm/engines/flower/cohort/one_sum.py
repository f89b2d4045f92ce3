"""The server's side of one cohort's sum in a round: who is still there, what each is sent, and why a sum is not used."""

from collections.abc import Iterable, Mapping

import numpy as np

from fedpdm.engines.flower.protocol import STEPS, Reply
from fedpdm.secure_sums.messages import ProtocolError
from fedpdm.secure_sums.server import SumServer
from fedpdm.secure_sums.terms import Terms

__all__ = ["OneSum"]


class OneSum:
    """One cohort in one round.

    Parameters
    ----------
    row : int
        The cohort's number.
    keys : mapping of int to str
        The keys of its members, by client.
    terms : Terms
        Those of its sum.
    there : iterable of int
        The clients that are connected. A member that is not, or that falls silent, has dropped out.

    Attributes
    ----------
    closed : str
        Why the sum stayed closed or is not used; "" while it may be.
    refused : bool
        Whether it was opened, and the server does not use it.
    words : ndarray or None
        The sum, if it was opened.
    """

    def __init__(self, row: int, keys: Mapping[int, str], terms: Terms, there: Iterable[int]) -> None:
        self.row, self.members = row, sorted(keys)
        self.closed, self.refused = "", False
        self.words: np.ndarray | None = None
        self._server = SumServer(terms)
        self._numbers = {client: terms.number_of(key) for client, key in keys.items()}
        self._there = sorted(set(there) & keys.keys())

    @property
    def name(self) -> str:
        """The cohort in a log."""
        listed = ", ".join(str(client) for client in self.members[:6]) + (", ..." if len(self.members) > 6 else "")
        return f"cohort {self.row + 1} (clients {listed})"

    @property
    def survivors(self) -> list[int]:
        """The clients whose shares are in the sum."""
        return [client for client in self.members if self._numbers[client] in self._server.survivors]

    def ask(self, name: str) -> dict[int, bytes]:
        """Return the protocol's message of a step to everybody who is still there; none where too few are."""
        if self.closed:
            return {}
        server = self._server
        makes = {"advertise": server.invitation, "pieces": server.all_keys}
        makes |= {"agree": server.survivors_list, "reveal": server.agreements}
        try:
            common = makes[name]() if name in makes else b""
            return {client: common or server.pieces_for(self._numbers[client]) for client in self._there}
        except ProtocolError as error:
            self.closed = str(error)
            return {}

    def take(self, step: int, heard: Mapping[int, Reply]) -> list[str]:
        """Take the replies to a step; return a line for every member that says something wrong and so has dropped out."""
        server, wrong = self._server, {}
        takes = (server.take_keys, server.take_pieces, server.take_masked, server.take_agreement, server.take_reveal)
        for client in [client for client in self._there if client in heard]:
            try:
                takes[step](self._numbers[client], heard[client].vectors)
            except ProtocolError as error:
                wrong[client] = f"step {STEPS[step]}, client {client}: {error}"
        self._there = [client for client in self._there if client in heard and client not in wrong]
        return list(wrong.values())

    def open(self) -> None:
        """Open the sum, if enough members took all steps."""
        if self.closed:
            return
        try:
            self.words = self._server.open()
        except ProtocolError as error:
            self.closed = str(error)

    def refuse(self, why: str) -> None:
        """Do not use the sum."""
        self.closed = f"The sum is refused ({why.rstrip('.')}); whose contribution it was, nobody can tell."
        self.refused = True
