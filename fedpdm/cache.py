"""Where fedpdm keeps what can be made or fetched again: data files, feature maps, compiled programs."""

import os
from pathlib import Path

import platformdirs

__all__ = ["cache_dir", "remember_compilations"]


def cache_dir() -> Path:
    """Give the folder of checked files: `FEDPDM_CACHE`, or the user's cache folder."""
    named = os.environ.get("FEDPDM_CACHE")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("fedpdm")


def remember_compilations() -> None:
    """Let JAX keep compiled programs in the cache folder, unless told another place. To be called before JAX is imported.

    Programs of runs that differ in numbers alone are the same (`fedpdm.engines.simulation.programs`), so a second
    command with other settings of the same shape compiles nothing. The folder may be removed at any time.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_dir() / "programs"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
