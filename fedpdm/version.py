"""The version of the installed package, which comes from the git tags."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("fedpdm")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
