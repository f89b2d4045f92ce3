"""MkDocs hook: $...$ and $$...$$ become MathML when the site is built, so that no reader needs a script or a network."""

import re
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

ElementTree.register_namespace("", "http://www.w3.org/1998/Math/MathML")

DISPLAY = r"\$\$(.+?)\$\$"
INLINE = r"(?<![\\$\w])\$(?!\s)((?:\\.|[^$\\])+?)(?<!\s)\$(?![\d$])"


def _lower_prime(element: ElementTree.Element) -> None:
    """A prime is raised by itself: as a superscript it would be too small and too high in fonts without mathematics."""
    kind = element.tag.rpartition("}")[2]
    if kind not in ("msup", "msubsup") or element[-1].text != "\u2032":
        return
    prime = element[-1]
    prime.attrib |= {"lspace": "0", "rspace": "0"}
    inner = ElementTree.Element(element.tag.replace("msubsup", "msub").replace("msup", "mrow"))
    inner.extend(list(element)[:-1])
    element.tag = element.tag.replace(kind, "mrow")
    element[:] = [inner, prime]


class MathProcessor(InlineProcessor):
    """Formulas, before backslashes and underscores mean anything else."""

    def __init__(self, pattern: str, display: str, md: Markdown) -> None:
        super().__init__(pattern, md)
        self.compiled_re = re.compile(pattern, re.DOTALL)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:
        source = " ".join(m[1].replace("\\|", "‖").split())
        mathml = convert(source, display=self.display)
        if unknown := re.search(r">(\\\\[a-zA-Z]+)", mathml):
            raise ValueError(f"latex2mathml does not know {unknown[1]} in ${source}$: write it otherwise.")
        tree = ElementTree.fromstring(mathml)
        for element in list(tree.iter()):
            _lower_prime(element)
        return self.md.htmlStash.store(ElementTree.tostring(tree, encoding="unicode")), m.start(), m.end()


class MathExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        # above "backtick" (190) nothing in code would be safe; below "escape" (180) backslashes would be gone
        md.inlinePatterns.register(MathProcessor(DISPLAY, "block", md), "math-display", 186)
        md.inlinePatterns.register(MathProcessor(INLINE, "inline", md), "math-inline", 185)


def on_config(config: Any) -> Any:
    config["markdown_extensions"].append(MathExtension())
    return config
