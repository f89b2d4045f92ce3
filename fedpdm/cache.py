"""The cache folder, for files that can be made or fetched again: data, feature maps, compiled programs."""

import os
from pathlib import Path

import platformdirs

__all__ = ["cache_dir", "remember_compilations"]


def cache_dir() -> Path:
    """Return the folder of checked files.

    Returns
    -------
    Path
        `FEDPDM_CACHE` if it is set, else the user's cache folder.
    """
    named = os.environ.get("FEDPDM_CACHE")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("fedpdm")


def remember_compilations() -> None:
    """Let JAX store compiled programs in the cache folder, unless the environment names another one.

    Call it before JAX is imported. Runs that differ in numbers alone share their programs
    (`fedpdm.engines.simulation.programs`), so a second command with other numbers compiles nothing. You may remove the folder
    at any time.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_dir() / "programs"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
