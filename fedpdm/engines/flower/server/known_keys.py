"""Which key each client's number belongs to: learnt when a client first proves one, and kept for the whole run."""

from pathlib import Path

from fedpdm.engines.flower.protocol import Introduction, Meeting, Refused, statement
from fedpdm.runs.folder import atomic_write
from fedpdm.runs.integrity import read_sealed, sealed
from fedpdm.secure_sums.keys import verify
from fedpdm.secure_sums.messages import ProtocolError

__all__ = ["KnownKeys"]

FILE = "keys.json"


class KnownKeys:
    """The keys of a run's clients.

    Parameters
    ----------
    folder : Path
        The server's run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._keys: dict[str, str] = {}
        if self._path.exists():
            self._keys = read_sealed(self._path, "put the backup of it back")

    def require(self, meeting: Meeting, who: Introduction) -> None:
        """Refuse a node that does not hold the key of the client that it says it is.

        Parameters
        ----------
        meeting, who
            What the node was asked, and what it said.
        """
        try:
            verify(who.key, bytes.fromhex(who.proof), statement(meeting, who.client))
        except (ProtocolError, ValueError):
            raise Refused("client", f"It does not prove that it holds the key of client {who.client}.") from None
        bound = self._keys.get(str(who.client))
        if bound is None and who.key in self._keys.values():
            raise Refused("client", f"Its key belongs to another client than {who.client}.")
        if bound is not None and bound != who.key:
            raise Refused("client", f"Client {who.client} has proved another key before: {self._path.name} has it.")
        if bound is None:
            self._keys[str(who.client)] = who.key
            atomic_write(self._path, sealed(self._keys))
