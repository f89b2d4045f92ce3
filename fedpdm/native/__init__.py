"""Machine code for what XLA does slowly on a CPU; every function here has a JAX function that it must agree with."""

import functools
import importlib.util
import os

__all__ = ["SWITCH", "native_kernels"]

SWITCH = "FEDPDM_NATIVE"  # environment variable; 0: use JAX for everything


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def native_kernels() -> bool:
    """Whether the kernels can be used: Numba is installed (`pip install 'fedpdm[native]'`), and nobody said no."""
    return os.environ.get(SWITCH, "1") != "0" and _installed()
