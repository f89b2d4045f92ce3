"""Docstrings of the public names are complete in every room, and sentences are plain."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "fedpdm"
DOCS = PACKAGE.parent / "docs"
NO_RESULT = (None, "None")
HELP = "cli"  # the docstring of a command is its `--help`, where the options describe themselves
QUAINT = re.compile(
    r"\blest\b|\bif so told\b|\bgone on with\b|\bone's own\b|\bwhoever\b|\bread off\b|(?:^|\"\"\"|\. )What an? ",
    re.MULTILINE,
)


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
        section = text.partition("Parameters\n----------")[2]
        wanted["Parameters"] = not arguments or bool(section)
        for name in (argument.arg for argument in arguments if section):
            wanted[f"the parameter {name}"] = bool(re.search(rf"(?:^|[ ,*]){name}\b", section, re.MULTILINE))
        wanted["Returns"] = result in NO_RESULT or "Returns\n-------" in text
    return [part for part, there in wanted.items() if not there]


def is_command(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """A command prints its result and describes each option in its annotation."""
    if not isinstance(node, ast.FunctionDef) or not node.returns or ast.unparse(node.returns) != "None":
        return False
    return any("Option" in ast.unparse(arg.annotation or node.returns) for arg in node.args.args)


def test_public_names_are_documented():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names, place = public(tree), path.relative_to(PACKAGE)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
                parts = missing(node)
                if place.parts[0] == HELP and is_command(node):
                    parts = [part for part in parts if part == "a docstring"]
                found += [f"{place}: {node.name} lacks {part}" for part in parts]
    assert not found, "\n".join(found)


def test_a_function_without_sections_is_found():
    (node,) = ast.parse('def double(x: float) -> float:\n    """Double a number."""\n    return 2 * x\n').body
    assert isinstance(node, ast.FunctionDef)
    assert missing(node) == ["Parameters", "Returns"]
    (node,) = ast.parse('def add(x, y):\n    """Add.\n\n    Parameters\n    ----------\n    x : float\n    """\n').body
    assert isinstance(node, ast.FunctionDef)
    assert missing(node) == ["the parameter y"]


def test_no_two_classes_have_one_name():
    """Each algorithm names its own states `ClientState` and `ServerState`, as docs/developer/add-an-algorithm.md shows."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not (path.parent.name == "algorithms" and node.name.endswith("State")):
                found.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_sentences_are_plain():
    """docs/developer/style.md names these words as bad examples; results are written by studies."""
    pages = [page for page in DOCS.rglob("*.md") if page.name != "style.md" and "results" not in page.parts]
    found = []
    for path in (*sorted(PACKAGE.rglob("*.py")), *sorted(pages), PACKAGE.parent / "README.md"):
        found += [f"{path.name}: {match[0].strip()!r}" for match in QUAINT.finditer(path.read_text(encoding="utf-8"))]
    assert not found, "reword these sentences (docs/developer/style.md):\n" + "\n".join(found)


def test_a_sentence_that_is_not_plain_is_found():
    assert QUAINT.search("The room is small. What a client keeps is large.")
    assert QUAINT.search("Lock it, lest somebody opens it.")
    assert not QUAINT.search("Read the rows of the file.")


def test_the_files_of_make_quick_exist():
    lines = (PACKAGE.parent / "Makefile").read_text().replace("\\\n", " ").splitlines()
    (chosen,) = (line.removeprefix("QUICK :=").split() for line in lines if line.startswith("QUICK :="))
    assert len(chosen) > 5
    assert [name for name in chosen if not (PACKAGE.parent / name).is_file()] == []
