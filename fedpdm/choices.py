"""What a data set's name says, for whoever must not import the data's own packages."""

import re

__all__ = ["is_table"]


def is_table(name: str) -> bool:
    """Whether a data set's name is that of an own table: a path has a dot, a slash or a colon, a known data set has none.

    >>> is_table("people.csv"), is_table("mnist")
    (True, False)
    """
    return bool(re.search(r"[./\\:]", name))
