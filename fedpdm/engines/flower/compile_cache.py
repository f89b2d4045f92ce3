"""Compiled programs on disk: a process that lives for one message would else spend most of its time on compiling."""

import os
from pathlib import Path

import jax

__all__ = ["use_compile_cache"]


def use_compile_cache(folder: Path) -> None:
    """Keep what is compiled in `folder`/compiled, or where JAX_COMPILATION_CACHE_DIR says; it may be deleted at any time."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
