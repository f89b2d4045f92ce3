"""Which replies of a round may be used: the first one of each client that was asked, for what it was asked."""

from collections.abc import Iterable

from fedpdm.engines.flower.protocol import Refused, Reply, Request

__all__ = ["NodeAnswer", "valid_replies"]

NodeAnswer = tuple[int, Reply | Refused]  # the client that a node stands for, and what it said


def valid_replies(asked: dict[int, Request], replies: Iterable[NodeAnswer]) -> tuple[dict[int, Reply], list[str]]:
    """Replies by client, in the order of the clients; and what is wrong with the others."""
    messages: dict[int, Reply] = {}
    dropped: list[str] = []
    for client, said in replies:
        try:
            messages[client] = _required(asked, messages, client, said)
        except Refused as refused:
            dropped.append(f"client {client}: {refused}")
    return {client: messages[client] for client in sorted(messages)}, dropped


def _required(asked: dict[int, Request], messages: dict[int, Reply], client: int, said: Reply | Refused) -> Reply:
    """A reply must be the first one of a client that was asked, for this job and round, under the name of its content."""
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
        raise Refused("replayed", f"The reply is for round {said.round} of job {said.job}, not for what was asked.")
    if not said.genuine:
        raise Refused("malformed", "The message's name is not that of its content.")
    if said.message == request.accepted:
        raise Refused("replayed", "The same message was used before.")
    if client in messages:
        raise Refused("duplicate", "This client has answered this round already.")
    return said
