"""How long the server waits for a silent member of a secure sum: a slow machine must not look like dead members."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Patience", "LEAST_SECONDS", "RETURN_SECONDS"]

LEAST_SECONDS = 15.0  # also where all answers were quick: a process may be started again in between
RETURN_SECONDS = 75.0  # Flower notices after up to 60 s that a node's process has died; until then the node gets no new one


class Patience(NamedTuple):
    """Wait for a multiple of the time that the others take.

    Once half of those who were asked have answered, the slowest of them is the measure. Until then the timeout holds.

    Parameters
    ----------
    timeout
        The most seconds to wait.
    factor
        Multiple of the others' time; 0: always wait for the timeout.
    least
        The least seconds to wait, however quick the others are.

    Examples
    --------
    >>> patience = Patience(600.0, 4.0)
    >>> patience.limit(asked=5, times=[8.0, 9.0])
    600.0
    >>> patience.limit(asked=5, times=[8.0, 9.0, 10.0])
    40.0
    """

    timeout: float
    factor: float = 0.0
    least: float = LEAST_SECONDS

    def limit(self, asked: int, times: Sequence[float]) -> float:
        """Return the seconds after which a silent member has dropped out.

        Parameters
        ----------
        asked
            How many were asked.
        times
            Seconds after which answers came, so far.

        Returns
        -------
        float
            The seconds, from the question on.
        """
        if not self.factor or 2 * len(times) < asked:
            return self.timeout
        return min(self.timeout, max(self.least, self.factor * max(times)))
