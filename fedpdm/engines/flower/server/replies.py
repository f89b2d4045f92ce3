"""The valid replies of a round: the first reply of each client that the server asked, to this request."""

from collections.abc import Iterable

from fedpdm.engines.flower.protocol import Refused, Reply, Request
from fedpdm.errors import UserError

__all__ = ["NodeAnswer", "require_enough", "valid_replies"]

NodeAnswer = tuple[int, Reply | Refused]  # a node's client, and its answer


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
        raise Refused(said.refused, said.reason)
    if said.client != client:
        raise Refused("impostor", f"It answered for client {said.client}.")
    if (said.job, said.round) != (request.job, request.round):
        raise Refused("replayed", f"The reply is for round {said.round} of job {said.job}, which was not requested.")
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
