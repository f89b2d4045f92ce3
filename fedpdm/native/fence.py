"""A fence around code that depends on internals of JAX: a switch, and the versions that the code is known to work with."""

import functools
import os
import warnings
from importlib.metadata import version
from typing import NamedTuple

__all__ = ["Fence"]


class Fence(NamedTuple):
    """Decides whether a fenced part of the package may be used.

    Extend `newest` after the tests of the part pass with that version (`make compatibility` runs them with the newest JAX).
    Never extend it without them: the part reads structures that another version may have changed.

    Parameters
    ----------
    part : str
        The fenced part, as the subject of a message.
    switch : str
        Environment variable; 0 turns the part off.
    package : str
        The package whose internals the part reads: "jax" or "jaxlib".
    oldest, newest : tuple of int
        The versions (major, minor) that the part is known to work with, both inclusive.
    instead : str
        What happens without the part, for the message.
    """

    part: str
    switch: str
    package: str
    oldest: tuple[int, int]
    newest: tuple[int, int]
    instead: str

    def is_open(self) -> bool:
        """Whether the part may be used; an unknown version costs one warning per process."""
        if os.environ.get(self.switch, "1") == "0":
            return False
        installed = version(self.package)
        if self.oldest <= _major_minor(installed) <= self.newest:
            return True
        _warn_once(self, installed)
        return False


def _major_minor(text: str) -> tuple[int, int]:
    major, minor, *_ = text.split(".")
    return int(major), int(minor)


@functools.cache
def _warn_once(fence: Fence, installed: str) -> None:
    oldest, newest = (".".join(map(str, bound)) for bound in (fence.oldest, fence.newest))
    warnings.warn(
        f"{fence.part} is known to work with {fence.package} {oldest} to {newest}, and {installed} is installed: "
        f"{fence.instead}. {fence.switch}=0 turns it off without this message.",
        stacklevel=4,
    )
