"""Encode the messages of a deployment as bytes, and decode and check the messages that its server receives."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedpdm.compression.exchange import Message, Reports
from fedpdm.compression.indices import encode_indices
from fedpdm.compression.links import Downlink, Links, Packed
from fedpdm.compression.values import KINDS
from fedpdm.compression.wire import Part, WireError, decode, encode, make_part, spread

__all__ = ["Received", "encode_message", "receive", "encode_broadcast"]

LARGEST = 1e6  # a message with a larger magnitude is refused: no model of norm-1 features needs it


class Received(NamedTuple):
    """The reports of a round, and the reasons why messages are not among them."""

    reports: Reports
    refused: dict[int, str]  # client -> reason and sentence
    index_bytes: dict[int, int]  # client -> bytes of its message that say which coordinates it holds


def encode_message(links: Links, packed: Packed) -> bytes:
    """Encode a client's message.

    Parameters
    ----------
    links : Links
        How messages are compressed.
    packed : Packed
        The message from `fedpdm.compression.links.pack`.

    Returns
    -------
    bytes
        The message; its length is `packed.bytes`.
    """
    kinds = {width: kind for kind, width in KINDS.items()}
    leaves = jax.tree.leaves(packed.message)
    masks = [np.ones(leaf.shape, bool) for leaf in leaves] if packed.sent is None else jax.tree.leaves(packed.sent)
    widths = jax.tree.leaves(packed.bytes_per_value)
    parts = [
        make_part(np.asarray(leaf), np.asarray(mask), shared=links.has_support, kind=kinds[int(width)])
        for leaf, mask, width in zip(leaves, masks, widths, strict=True)
    ]
    return encode(parts)


def receive(
    links: Links,
    silent: Message,
    messages: Mapping[int, bytes],
    support: Array | None = None,
    travel: Array | float = 1.0,
    limit: float = LARGEST,
) -> Received:
    """Decode the messages of a round.

    A message that is not valid counts as absent; nothing of it reaches the model.

    Parameters
    ----------
    links : Links
        How messages are compressed.
    silent : pytree
        The values of coordinates that are not sent (`Algorithm.silent`).
    messages : mapping of int to bytes
        The messages by client.
    support : Array or None
        The round's support, which the server knows.
    travel : float or Array
        See `fedpdm.algorithms.base.Reports`.
    limit : float
        The largest magnitude that is accepted.

    Returns
    -------
    Received
        The reports, and the refused messages.
    """
    leaves, tree = jax.tree.flatten(silent)
    shapes = [leaf.shape for leaf in leaves]
    known = None if support is None else np.flatnonzero(np.asarray(support))
    refused: dict[int, str] = {}
    index_bytes: dict[int, int] = {}
    values = [np.zeros((len(messages), *shape), np.float32) for shape in shapes]
    masks = [np.zeros((len(messages), *shape), bool) for shape in shapes]
    for place, (client, data) in enumerate(messages.items()):
        try:
            parts = decode(data, dimensions=[leaf.size for leaf in leaves], supports=[known] * len(leaves), limit=limit)
            _require_count(links, parts, known)
        except WireError as error:
            refused[client] = f"{error.reason}: {error}"
            continue
        index_bytes[client] = sum(
            len(encode_indices(part.indices, part.dimension)[1]) for part in parts if part.indices is not None
        )
        for leaf, part in enumerate(parts):
            value, mask = spread(part, known)
            values[leaf][place], masks[leaf][place] = value.reshape(shapes[leaf]), mask.reshape(shapes[leaf])
    present = jnp.array([client not in refused for client in messages], bool)
    stacked = (jax.tree.unflatten(tree, [jnp.asarray(a) for a in arrays]) for arrays in (values, masks))
    message, sent = stacked
    reports = Reports(message, jnp.array(list(messages), jnp.int32), present, sent, travel)
    return Received(reports, refused, index_bytes)


def _require_count(links: Links, parts: list[Part], support: np.ndarray | None) -> None:
    """Check that a client sends exactly the agreed number: otherwise it could count more in the element-wise mean."""
    for part in parts:
        agreed = part.dimension if links.uplink == 1 else links.count(part.dimension) if support is None else len(support)
        if len(part.values) != agreed:
            raise WireError("count", f"Expected {agreed} of {part.dimension} coordinates, got {len(part.values)}.")


def encode_broadcast(links: Links, downlink: Downlink) -> bytes:
    """Encode the broadcast that every participant of a round is sent.

    This is for `links.downlink_kind` "model". Zeros are left out where that is shorter.

    Parameters
    ----------
    links : Links
        How messages are compressed.
    downlink : Downlink
        The notes that `send_down` returned.

    Returns
    -------
    bytes
        The message; `send_down` returned its length.
    """
    kinds = {width: kind for kind, width in KINDS.items()}
    parts = []
    for value, width in zip(jax.tree.leaves(downlink.copy), jax.tree.leaves(downlink.width), strict=True):
        leaf = np.asarray(value)
        mask = leaf != 0
        kind = kinds[int(np.max(np.where(mask, width, 1)))]
        mask.flat[0] |= not mask.any()  # a vector with nothing to send still holds one coordinate
        whole, sparse = (make_part(leaf, chosen, kind=kind) for chosen in (np.ones(leaf.shape, bool), mask))
        parts.append(min(sparse, whole, key=lambda part: len(encode([part]))))
    return encode(parts)
