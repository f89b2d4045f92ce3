"""The valid replies of a round: the first reply of each client that the server asked, to this request."""

from collections.abc import Iterable

from fedpdm.engines.flower.protocol import REFUSALS, Refused, Reply, Request, is_digest
from fedpdm.errors import UserError

__all__ = ["NodeAnswer", "failed", "refusal", "require_enough", "valid_replies"]

NodeAnswer = tuple[int, Reply | Refused]  # a node's client, and its answer
LONGEST_WORDS = 200  # characters that a log takes over from outside


def refusal(code: str) -> Refused:
    """A client's refusal in this package's own words: a hostile node writes no line of the server's log.

    Parameters
    ----------
    code : str
        The code that the client sent.

    Returns
    -------
    Refused
        The refusal.

    Examples
    --------
    >>> str(refusal("client")), refusal("\\nfedpdm: round 9 of 9").name
    ('client: The request is for another client.', 'unknown')
    """
    if code in REFUSALS:
        return Refused(code, REFUSALS[code])
    return Refused("unknown", "It refuses with a code that this release of fedpdm does not have.")


def failed(reason: str | None, code: int) -> Refused:
    """A node's failure, as Flower tells it: one short line without control characters.

    Parameters
    ----------
    reason, code : str or None, int
        Of Flower's error.

    Returns
    -------
    Refused
        The refusal, with the name "node".

    Examples
    --------
    >>> str(failed("lost\\n\\x1b[2Jfedpdm: all is well", 3)), str(failed("", 3))
    ('node: lost ?[2Jfedpdm: all is well', 'node: error 3')
    """
    words = "".join(letter if letter.isprintable() else "?" for letter in " ".join((reason or "")[: 2 * LONGEST_WORDS].split()))
    return Refused("node", words[:LONGEST_WORDS] or f"error {code}")


def valid_replies(asked: dict[int, Request], replies: Iterable[NodeAnswer]) -> tuple[dict[int, Reply], list[str]]:
    """Select the valid replies of a round.

    Parameters
    ----------
    asked : dict of int to Request
        The requests by client.
    replies : iterable of NodeAnswer
        All answers.

    Returns
    -------
    dict of int to Reply, list of str
        Valid replies in the order of the clients; and a line for each of the others.
    """
    messages: dict[int, Reply] = {}
    dropped: list[str] = []
    for client, said in replies:
        try:
            messages[client] = _required(asked, messages, client, said)
        except Refused as refused:
            dropped.append(f"client {client}: {refused}")
    return {client: messages[client] for client in sorted(messages)}, dropped


def _required(asked: dict[int, Request], messages: dict[int, Reply], client: int, said: Reply | Refused) -> Reply:
    """Check that a reply is the client's first one to this request, for this job and round, under the name of its content."""
    request = asked.get(client)
    if isinstance(said, Refused):
        raise said
    if request is None:
        raise Refused("unasked", "This client was not asked in this round.")
    if said.refused:
        raise refusal(said.refused)
    if said.client != client:
        raise Refused("impostor", f"It answered for client {said.client}.")
    if (said.job, said.round) != (request.job, request.round):
        job = f"job {said.job}" if is_digest(said.job) else "a job without a name"
        raise Refused("replayed", f"The reply is for round {said.round} of {job}, which was not requested.")
    if not said.genuine:
        raise Refused("malformed", "The message's name does not fit its content.")
    if said.message == request.accepted:
        raise Refused("replayed", "The same message was used before.")
    if client in messages:
        raise Refused("duplicate", "This client has answered this round already.")
    return said


def require_enough(round_index: int, used: int, chosen: int, least: int, dropped: list[str]) -> None:
    """Refuse a round that hardly anybody answered: it is not counted, and the run stops.

    Parameters
    ----------
    round_index, used, chosen : int
        The round (from 0), the messages that can be used, and the round's clients.
    least : int
        Messages that it takes; 0: half of the clients.
    dropped : list of str
        What is wrong with the other messages.
    """
    least = min(least or -(-chosen // 2), chosen)
    if used >= least:
        return
    old = sum(any(f" {code}:" in line for code in ("state", "order", "repeat")) for line in dropped)
    why = f" {old} clients say that this checkpoint is an old copy: put the newest one back." if old else ""
    first = f" The first refusal: {dropped[0].rstrip('.')}." if dropped else ""
    raise UserError(
        f"Round {round_index + 1} got {used} messages that can be used, of {chosen} clients; it takes {least} "
        f"(flower.messages).{why}{first} The round was not counted: run again when the others are there."
    )
