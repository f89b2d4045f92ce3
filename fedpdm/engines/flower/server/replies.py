"""The valid replies of a round: the first reply of each client that the server asked, to this request."""

from collections.abc import Iterable

from fedpdm.engines.flower.protocol import Refused, Reply, Request

__all__ = ["NodeAnswer", "valid_replies"]

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
