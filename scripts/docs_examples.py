"""Griffe extension: lines with >>> become a section of examples, also in docstrings that do not head it as one."""

import re
from typing import Any

import griffe

HEADED = re.compile(r"^ *Examples\n *-+$", re.MULTILINE)
FIRST = re.compile(r"^( *)>>> ", re.MULTILINE)


class Examples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring and not HEADED.search(obj.docstring.value):
            obj.docstring.value = FIRST.sub(r"\1Examples\n\1--------\n\1>>> ", obj.docstring.value, count=1)
