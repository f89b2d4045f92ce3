"""Docstrings of the public names: complete in the rooms that are listed here."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "fedpdm"
ROOMS = ("compression", "export", "native", "problem", "report", "studies")
NO_RESULT = (None, "None")


def public(tree: ast.Module) -> set[str]:
    """The names in `__all__`."""
    names: set[str] = set()
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AugAssign) else None
        if isinstance(target, ast.Name) and target.id == "__all__":
            names |= set(ast.literal_eval(node.value))  # type: ignore[union-attr]
    return names


def missing(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    text = ast.get_docstring(node) or ""
    wanted = {"a docstring": bool(text)}
    if isinstance(node, ast.FunctionDef):
        arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        result = ast.unparse(node.returns) if node.returns else None
        wanted["Parameters"] = not arguments or "Parameters\n----------" in text
        wanted["Returns"] = result in NO_RESULT or "Returns\n-------" in text
    return [part for part, there in wanted.items() if not there]


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_are_documented(room):
    found = []
    for path in sorted((PACKAGE / room).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = public(tree)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
                found += [f"{path.relative_to(PACKAGE)}: {node.name} lacks {part}" for part in missing(node)]
    assert not found, "\n".join(found)


def test_a_function_without_sections_is_found():
    (node,) = ast.parse('def double(x: float) -> float:\n    """Double a number."""\n    return 2 * x\n').body
    assert isinstance(node, ast.FunctionDef)
    assert missing(node) == ["Parameters", "Returns"]


def test_the_files_of_make_quick_exist():
    lines = (PACKAGE.parent / "Makefile").read_text().replace("\\\n", " ").splitlines()
    (chosen,) = (line.removeprefix("QUICK :=").split() for line in lines if line.startswith("QUICK :="))
    assert len(chosen) > 5
    assert [name for name in chosen if not (PACKAGE.parent / name).is_file()] == []
