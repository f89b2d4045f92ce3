"""The vectors that client and server exchange in a round, before they are packed."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["Message", "Broadcast", "Reports", "like"]

# The algorithm decides the content of a message: a vector of the model's shape, or a pytree of such vectors.
Message = Any


def like(flags: Array, values: Array) -> Array:
    """Give flags of the first axes as many axes as the values have.

    Parameters
    ----------
    flags : Array
        Flags of the first axes.
    values : Array
        Values.

    Returns
    -------
    Array
        The flags, with further axes of length 1.
    """
    return flags.reshape(flags.shape + (1,) * (values.ndim - flags.ndim))


class Broadcast(NamedTuple):
    """The server's message to the participants of a round."""

    x0: Array
    extra: Any = ()  # further vectors of the model's shape, if the algorithm has any
    weight: Array | None = None  # the w of this round's local problems; None: the algorithm's own


class Reports(NamedTuple):
    """The messages of one round as the server sees them, stacked over the participants.

    A message is a vector of the model's shape, or a pytree of such vectors of which one is the model's
    (`Algorithm.model_vector`).
    """

    messages: Message  # leaves [participants, *model]
    clients: Array  # [participants], which client each message is from
    present: Array  # [participants] bool: False where no valid message arrived
    sent: Message | None = None  # masks like `messages`: which coordinates were sent; None: all of them
    travel: Array | float = 1.0  # how far the clients' steps go along a constant gradient: eta Q without a proximal term
    shares: Array | None = None  # [participants]: each one's share p_i of the objective; None: 1/N

    def arrived(self) -> Message:
        """Return masks like `messages`: the coordinates that arrived."""
        everything = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, bool), self.messages) if self.sent is None else self.sent
        return jax.tree.map(lambda mask: mask & like(self.present, mask), everything)
