"""Choose which coordinates are sent in both directions, in which values, and count the bytes.

    uplink:    topk, randk          Algorithm 2 of the paper: chosen from the message before its noise; zero where nobody sent
               shared-randk         a random support that both sides know before the round; only it moves and is noised
               public-topk          the same, from the largest coordinates of x0 and some random ones
               noisy-topk           the largest changes of a message that is noised already
    downlink:  model                the largest coordinates of x0; the others are zero for the clients (Algorithm 2)
               difference           the largest differences to the copy that the clients keep

The values that a support or a selection reads decide its cost. `topk` reads values without noise, so its indices are a release
in themselves, and the sound mechanism refuses it. The others read public or released values and cost nothing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedpdm.compression.exchange import Broadcast
from fedpdm.compression.sizes import HEADER_BYTES, index_bytes, part_bytes, value_bytes
from fedpdm.compression.sparsify import coordinate_count, random_mask, top_k_mask
from fedpdm.compression.values import rounded

__all__ = [
    "Links",
    "Downlink",
    "Packed",
    "shared_support",
    "support_radius",
    "select",
    "pack",
    "first_downlink",
    "send_down",
]

SUPPORTED = ("shared-randk", "public-topk")
SUPPORT_KEY = 2**31 - 2  # no client has this number
SPREAD = 1.25  # a random share of a vector's coordinates rarely holds more than this times its share of the norm


class Links(NamedTuple):
    """How messages are compressed. All of it is public and fixed before training.

    Attributes
    ----------
    kind, uplink
        How a client's coordinates are chosen (see the module) and their share.
    downlink_kind, downlink
        The same for the server.
    values
        Kind of the values: "float32", "float16", "int8" or "auto" (see `fedpdm.compression.values`).
    radius
        Bound on the part of an example's features that one class sees in a support; see `support_radius`.
    """

    kind: str = "topk"
    uplink: float = 1.0
    downlink_kind: str = "model"
    downlink: float = 1.0
    values: str = "float32"
    radius: float = 1.0

    @property
    def has_support(self) -> bool:
        """Whether the coordinates of a round are known to all before it."""
        return self.uplink < 1 and self.kind in SUPPORTED

    def count(self, size: int) -> int:
        """Return how many of a vector's coordinates a client sends."""
        return coordinate_count(self.uplink, size)

    @property
    def holds(self) -> bool:
        """Whether the model keeps coordinates that no client sent; otherwise they become the prox of zero."""
        return self.uplink < 1 and self.kind not in ("topk", "randk")


class Packed(NamedTuple):
    """A message as it arrives, and its size."""

    message: Any
    sent: Any  # masks like the message; None: everything
    bytes: Array
    index_bytes: Array
    bytes_per_value: Any  # tree like the message


class Downlink(NamedTuple):
    """The server's notes about the clients' copies of the broadcast."""

    copy: Broadcast  # the copy of a client that has received everything
    source: Broadcast  # the server's own values behind the copy: they differ by the rounding of the sent values
    changed: Broadcast  # the round in which each coordinate of the copy was last sent; -1: never
    width: Broadcast  # the bytes of each value of the copy
    heard: Array  # [clients]: the last round that each client received; -1: none


def support_radius(kind: str, share: float, radius: float) -> float:
    """Compute the bound on the norm of an example's features that one class sees in a support.

    Parameters
    ----------
    kind : str
        A word of `fedpdm.choices.words.COORDINATES`.
    share : float
        Share of the coordinates in the support.
    radius : float
        Bound on the norm of all features.

    Returns
    -------
    float
        The bound. A random support holds about the root of its share of the norm.
    """
    return min(1.0, SPREAD * share**0.5) * radius if kind == "shared-randk" and share < 1 else radius


def shared_support(links: Links, seed: Array | int, round_index: Array | int, x0: Array) -> Array | None:
    """Choose the coordinates that may move in a round, from public values alone.

    Parameters
    ----------
    links : Links
        How messages are compressed.
    seed : int or Array
        Public seed of the run.
    round_index : int or Array
        The round, from 0.
    x0 : Array
        The model that was sent to the clients.

    Returns
    -------
    Array or None
        Mask of the model's shape; None: all coordinates.
    """
    if not links.has_support:
        return None
    count = links.count(x0.size)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), round_index), SUPPORT_KEY)
    if links.kind == "shared-randk":
        return random_mask(key, x0.shape, count)
    if count == 1:  # the largest one would always be the same
        return random_mask(key, x0.shape, 1)
    large = top_k_mask(x0, count // 2)
    return top_k_mask(jnp.where(large, 2.0, jax.random.uniform(key, x0.shape)), count)


def select(links: Links, before: Any, after: Any, silent: Any, support: Array | None, key: Array) -> Any:
    """Choose the coordinates that a client sends.

    Parameters
    ----------
    links : Links
        How messages are compressed.
    before : pytree
        The message without noise; only `topk` reads it.
    after : pytree
        The message with noise.
    silent : pytree
        The value that a coordinate stands for if it is not sent.
    support : Array or None
        The round's support, if there is one.
    key : Array
        Random key for `randk`.

    Returns
    -------
    pytree or None
        Masks like the message; None: all coordinates.
    """
    if links.uplink == 1:
        return None
    if support is not None:
        return jax.tree.map(lambda leaf: support, after)
    leaves, tree = jax.tree.flatten(before if links.kind == "topk" else after)
    counts = [links.count(leaf.size) for leaf in leaves]
    if links.kind == "randk":
        masks = [random_mask(jax.random.fold_in(key, i), leaves[i].shape, k) for i, k in enumerate(counts)]
    else:
        if links.kind == "noisy-topk":
            leaves = [leaf - rest for leaf, rest in zip(leaves, jax.tree.leaves(silent), strict=True)]
        masks = [top_k_mask(leaf, k) for leaf, k in zip(leaves, counts, strict=True)]
    return jax.tree.unflatten(tree, masks)


def pack(links: Links, message: Any, sent: Any, noise: Any) -> Packed:
    """Round a message to the values that arrive, and count its bytes.

    Parameters
    ----------
    links : Links
        How messages are compressed.
    message : pytree
        The message with noise.
    sent : pytree or None
        Masks from `select`.
    noise : pytree
        Standard deviation of the noise in each vector of the message.

    Returns
    -------
    Packed
        The message as it arrives, with its size.
    """
    leaves, tree = jax.tree.flatten(message)
    masks = [jnp.ones(leaf.shape, bool) for leaf in leaves] if sent is None else jax.tree.leaves(sent)
    shared = sent is None or links.has_support
    total, indices, arrived, widths = jnp.int32(HEADER_BYTES), jnp.int32(0), [], []
    for leaf, mask, sigma in zip(leaves, masks, jax.tree.leaves(noise), strict=True):
        value, each = rounded(leaf, mask, links.values, sigma)
        arrived.append(value)
        widths.append(each)
        own = jnp.int32(0) if shared else index_bytes(mask)
        total += value_bytes(mask, each) + own
        indices += own
    return Packed(jax.tree.unflatten(tree, arrived), sent, total, indices, jax.tree.unflatten(tree, widths))


def first_downlink(broadcast: Broadcast, clients: int) -> Downlink:
    """Make the server's notes for the start, when nothing was sent.

    Parameters
    ----------
    broadcast : Broadcast
        Arrays of the shapes that will be sent.
    clients : int
        Number of clients.

    Returns
    -------
    Downlink
        Empty notes.
    """
    nothing = jax.tree.map(jnp.zeros_like, broadcast)
    never = jax.tree.map(lambda leaf: jnp.full(leaf.shape, -1, jnp.int32), broadcast)
    width = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 4, jnp.int32), broadcast)
    return Downlink(nothing, nothing, never, width, jnp.full(clients, -1, jnp.int32))


def send_down(
    links: Links, downlink: Downlink, broadcast: Broadcast, clients: Array, present: Array, round_index: Array, noise: Array
) -> tuple[Broadcast, Downlink, Array]:
    """Make the broadcast of a round as the clients receive it.

    With `downlink_kind` "difference" the clients' copy moves where the model moved, by the largest differences first. A client
    that missed rounds is sent every coordinate of the copy that changed since, so all participants work with the same model.

    Parameters
    ----------
    links : Links
        How messages are compressed.
    downlink : Downlink
        The server's notes.
    broadcast : Broadcast
        The server's own values.
    clients : Array
        The participants.
    present : Array
        Which of them take part.
    round_index : Array
        The round, from 0.
    noise : Array
        Standard deviation of the noise in x0.

    Returns
    -------
    tuple
        The broadcast that the participants work with, the new notes, and the bytes that each participant was sent.
    """
    leaves, tree = jax.tree.flatten(broadcast)
    notes = zip(*(jax.tree.leaves(part) for part in downlink[:4]), strict=True)
    sizes = jnp.full(clients.shape, HEADER_BYTES, jnp.int32)
    after = []
    for place, (leaf, old) in enumerate(zip(leaves, notes, strict=True)):
        sigma = noise if place == 0 else jnp.float32(0.0)  # only the noise of x0 is known
        if links.downlink_kind == "difference":
            new = _differences(links, leaf, old, round_index, sigma)
            since = downlink.heard[clients].reshape(-1, *(1,) * leaf.ndim)
            sizes += jax.vmap(_down_bytes, (0, None))(new[2] > since, new[3])
        else:
            mask = (
                leaf != 0
                if links.downlink == 1
                else top_k_mask(leaf, coordinate_count(links.downlink, leaf.size)) & (leaf != 0)
            )
            value, each = rounded(leaf, mask, links.values, sigma)
            new = (value, leaf, old[2], jnp.full(leaf.shape, each))
            sizes += _down_bytes(mask, new[3])
        after.append(new)
    heard = downlink.heard.at[clients].max(jnp.where(present, round_index, -1))
    trees = [jax.tree.unflatten(tree, part) for part in zip(*after, strict=True)]
    return trees[0], Downlink(trees[0], trees[1], trees[2], trees[3], heard), jnp.where(present, sizes, 0)


def _differences(links: Links, leaf: Array, old: tuple[Array, ...], round_index: Array, noise: Array) -> tuple[Array, ...]:
    """Copy, source, changed and width of one vector after the largest differences were sent.

    A client may be sent values of several rounds in one message, so they must be exact in one type: float16 and float32 fit
    into float32, codes of int8 with a step of their own each do not. So "int8" and "auto" go no coarser than float16 here.
    """
    copy, source, changed, width = old
    moved = leaf != source
    news = moved & top_k_mask(jnp.where(moved, leaf - copy, 0.0), coordinate_count(links.downlink, leaf.size))
    _, each = rounded(leaf, news, links.values, noise)
    each = jnp.maximum(each, 2)
    value = jnp.where(each == 2, rounded(leaf, news, "float16", noise)[0], leaf)
    return (
        jnp.where(news, value, copy),
        jnp.where(news, leaf, source),
        jnp.where(news, round_index, changed),
        jnp.where(news, each, width),
    )


def _down_bytes(mask: Array, width: Array) -> Array:
    """Count the bytes. Zeros are not sent, but a vector without values still holds one; whole vectors need no indices."""
    each = jnp.maximum(jnp.max(jnp.where(mask, width, 0)), 1)
    first = jnp.zeros(mask.size, bool).at[0].set(True).reshape(mask.shape)
    sparse = part_bytes(jnp.where(jnp.any(mask), mask, first), each)
    return jnp.minimum(sparse, part_bytes(jnp.ones(mask.shape, bool), each, True))
