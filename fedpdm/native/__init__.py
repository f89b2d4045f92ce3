"""Machine code for the local steps that XLA compiles poorly on a CPU. Every function here agrees with a JAX function."""

import functools
import importlib.util

from fedpdm.native.fence import Fence

__all__ = ["FENCE", "SWITCH", "native_kernels"]

SWITCH = "FEDPDM_NATIVE"  # environment variable; 0: use JAX for everything
# `fedpdm.native.bridge` reads XLA's call frames by offset, and their layout is jaxlib's own: jaxlib 0.8.0 crashes with it.
FENCE = Fence(
    "The kernel for local steps",
    SWITCH,
    "jaxlib",
    (0, 9),
    (0, 10),
    "XLA compiles local steps, with the same results",
)


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def native_kernels() -> bool:
    """Whether the kernels can be used.

    Returns
    -------
    bool
        True if Numba is installed (`pip install 'fedpdm[native]'`), the switch is not off, and jaxlib is a version that the
        kernels know.
    """
    return _installed() and FENCE.is_open()
