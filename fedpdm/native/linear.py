"""Local steps of linear models with small batches, one client after the other, each in the cache of one core.

These are the steps that `fedpdm.algorithms.local.solve` takes in JAX; the results agree up to rounding. XLA works on all
clients at once, step by step, and so sends every client's model through memory in every step. Here a client's model stays in
the cache of one core until all of its steps are done.
"""

# Numba has its own types, which pyright does not know.
# pyright: reportArgumentType=false, reportCallIssue=false, reportPrivateImportUsage=false, reportReturnType=false

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numba import cfunc, njit

from fedpdm.native.bridge import (
    HANDLER,
    ITEM,
    SOURCES,
    address_of,
    buffers,
    dimension,
    floats,
    floats_at,
    integers,
    name_function,
    register,
    serve,
)
from fedpdm.native.draws import draw, order_of
from fedpdm.native.steps import KINDS, client_steps

__all__ = ["Numbers", "linear_steps"]

TARGET = "fedpdm_linear_steps"


class Numbers(NamedTuple):
    """The numbers of a local problem, in the order in which the kernel reads them."""

    weight: Array | float
    step_size: Array | float
    beta: Array | float
    loss_clip: Array | float
    batch_clip: Array | float
    tolerance: Array | float
    lasso: Array | float  # times the signs of x: the subgradient of an L1 penalty


@njit(error_model="numpy")
def _solve_one(arguments: np.ndarray, results: np.ndarray, c: int) -> None:
    """The c-th of the clients; the arguments are those of `_all_clients`."""
    features, labels, sizes, clients, keys, x0, linear_terms, numbers, counts = arguments
    n, rows, registered = dimension(features, 1), dimension(features, 2), dimension(features, 3)
    classes, working = dimension(x0, 2), dimension(clients, 1)
    # Never read other memory, for any input.
    client = min(max(integers(clients, (working,))[c], 0), registered - 1)
    size = min(max(integers(sizes, (registered,))[client], 1), rows)
    own_features = floats(features, (registered, rows, n))[client]
    own_labels = integers(labels, (registered, rows))[client]
    start, values = floats(x0, (classes, n)), floats(numbers, (7,))
    given = dimension(linear_terms, 3)  # one for all clients, or one for each
    # The model, the part of the direction that stays the same, and room for a gradient. Not in the result, whose neighbours are
    # written by other threads; and without owners, since Numba counts them at every slice.
    memory = np.empty((3, classes, n), np.float32)
    parts = floats_at(memory.ctypes.data, (3, classes, n))
    x, fixed, room = parts[0], parts[1], parts[2]
    x[:] = start
    fixed[:] = floats(linear_terms, (given, classes, n))[min(c, given - 1)] - values[0] * start
    kind, steps, batch = integers(counts, (3,))
    draws, order, starts = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size + 1, np.int64)
    draw(integers(keys, (working, 2))[c].view(np.uint32), draws)
    order_of(draws, order, starts)
    taken = client_steps(kind, steps, batch, values, own_features, own_labels, order, fixed, x, room)
    floats(results[0], (working, classes, n))[c] = memory[0]
    integers(results[1], (working,))[c] = taken


_item = address_of(f"{TARGET}_item")


def _compile(sources: int) -> None:
    """Compile the kernel, or read it from Numba's cache. Both functions capture `sources`: see `fedpdm.native.bridge`."""

    @cfunc(ITEM, cache=True)
    def item(frame: int, number: int) -> None:
        if sources > 0:
            arguments, results = buffers(frame)
            _solve_one(arguments, results, number)

    name_function(f"{TARGET}_item", item)

    @cfunc(HANDLER, cache=True)
    def handle(frame: int) -> int:
        if sources > 0:
            serve(frame, _item())
        return 0

    register(TARGET, handle)


_compile(SOURCES)


def linear_steps(
    counts: tuple[str, int, int],
    numbers: Numbers,
    data: tuple[Array, Array, Array],
    client: Array,
    key: Array,
    x0: Array,
    linear_term: Array,
) -> tuple[Array, Array]:
    """Compute the local model of a client in machine code. It can be mapped over clients.

    Parameters
    ----------
    counts : tuple
        The name of the loss, the largest number of steps, the examples per step.
    numbers : Numbers
        Step size, weights and clips.
    data : tuple of Array
        Features, labels and sizes of all clients.
    client : Array
        Index of the client.
    key : Array
        The data of a Threefry key. The client's rows are visited in the order of `jax.random.uniform` with it.
    x0 : Array
        The model that the client starts from, [m, n].
    linear_term : Array
        The v_i of the local problem, [m, n].

    Returns
    -------
    tuple of Array
        The local model [m, n], and the number of steps taken.
    """
    kind, steps, batch_size = counts
    whole = jnp.array([KINDS[kind], steps, batch_size], jnp.int32)
    values = jnp.stack([jnp.asarray(number, jnp.float32) for number in numbers])
    models, taken = _mapped(*data, client, key, x0, linear_term, values, whole)
    return models, taken


@jax.custom_batching.custom_vmap
def _mapped(*operands: Array) -> tuple[Array, Array]:
    features, labels, sizes, client, key, x0, linear_term, values, whole = operands
    models, taken = _all_clients(features, labels, sizes, client[None], key[None], x0, linear_term[None], values, whole)
    return models[0], taken[0]


@_mapped.def_vmap
def _over_clients(axis_size: int, batched: list[bool], *operands: Array) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
    features, labels, sizes, client, key, x0, linear_term, values, whole = operands
    common = [*batched[:3], batched[5], *batched[7:]]  # data, x0 and numbers
    if any(common):  # rare: several federations or settings at once
        rows = [o if b else jnp.broadcast_to(o, (axis_size, *o.shape)) for o, b in zip(operands, batched, strict=True)]
        return jax.lax.map(lambda row: _mapped(*row), tuple(rows)), (True, True)
    client = client if batched[3] else jnp.broadcast_to(client, (axis_size,))
    key = key if batched[4] else jnp.broadcast_to(key, (axis_size, *key.shape))
    terms = linear_term if batched[6] else linear_term[None]
    return _all_clients(features, labels, sizes, client, key, x0, terms, values, whole), (True, True)


def _all_clients(
    features: Array,
    labels: Array,
    sizes: Array,
    clients: Array,
    keys: Array,
    x0: Array,
    linear_terms: Array,
    values: Array,
    counts: Array,
) -> tuple[Array, Array]:
    shapes = jax.ShapeDtypeStruct((*clients.shape, *x0.shape), jnp.float32), jax.ShapeDtypeStruct(clients.shape, jnp.int32)
    return tuple(jax.ffi.ffi_call(TARGET, shapes)(features, labels, sizes, clients, keys, x0, linear_terms, values, counts))
