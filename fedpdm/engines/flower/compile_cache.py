"""Compiled programs on disk: without them, a process for one message would spend most of its time on compilation."""

import os
from pathlib import Path

import jax

__all__ = ["use_compile_cache"]


def use_compile_cache(folder: Path) -> None:
    """Store compiled programs in `folder`/compiled, or in JAX_COMPILATION_CACHE_DIR; you may delete them at any time.

    Parameters
    ----------
    folder : Path
        The state folder.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
