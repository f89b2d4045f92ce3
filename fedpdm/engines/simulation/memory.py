"""Large arrays on the device of a CPU, in large pages of memory.

Rows of clients are read in random order. In pages of 4 kB nearly every row needs a new look-up of its address, which cost a
seventh of a round on MNIST's shapes. NumPy asks the system for pages of 2 MB where an array is large; JAX does not.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

__all__ = ["on_device"]

LARGE_ARRAY = 2**22  # bytes: from here on NumPy asks for large pages
ALIGNMENT = 64  # bytes: XLA uses memory that begins at a multiple of this, and copies other memory


def on_device(array: Any) -> Array:
    """Copy an array to the device.

    Parameters
    ----------
    array : array
        Of NumPy, or anything that `jax.numpy.asarray` takes.

    Returns
    -------
    Array
        The copy. Later changes of `array` do not reach it.
    """
    if jax.default_backend() != "cpu" or getattr(array, "nbytes", 0) < LARGE_ARRAY:
        return jnp.asarray(array)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    memory = np.empty(array.size * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    copy = memory[start : start + array.size * dtype.itemsize].view(dtype).reshape(array.shape)
    copy[...] = array
    return jax.device_put(copy)  # takes this memory as it is; nobody else has it
