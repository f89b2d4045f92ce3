"""The graph of rooms: a room uses rooms of earlier levels only, and the map in the documentation shows every edge.

After a new edge that is allowed, write the map again: `python tests/test_architecture.py`.
"""

import ast
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "fedpdm"
PAGE = REPOSITORY / "docs" / "developer" / "architecture.md"
BEGIN, END = "<!-- graph: begin -->", "<!-- graph: end -->"

# Lower rooms first. Rooms of one level do not use each other.
LEVELS = (
    ("errors", "version", "cache", "native", "draws"),
    ("choices",),
    ("config", "metrics", "participation"),
    ("data", "problem", "compression"),
    ("privacy", "algorithms", "theory"),
    ("rounds", "secure_sums"),
    ("setup", "hostile"),
    ("engines.simulation",),
    ("runs",),
    ("engines.flower",),
    ("audit", "studies", "report", "export"),
    ("training",),
    ("estimator", "cli"),
)
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


def room(module: str) -> str:
    """The room of `fedpdm.data.tables` is `data`; each engine is a room."""
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts[0] == "engines" else 1])


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports, inside of functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in ("fedpdm", "fedpdm.engines"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return {name for name in found if name.startswith("fedpdm.")}


def edges() -> dict[str, dict[str, str]]:
    """For every room the rooms that it uses, each with a file that does; `fedpdm/__init__.py` only lists names."""
    graph: dict[str, dict[str, str]] = {name: {} for name in LEVEL}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        if (parts[-1] == "__init__" and len(parts) == 2) or parts[1:] == ("engines", "__init__"):
            continue
        here = room(".".join(parts))
        for name in imported(path):
            if room(name) != here:
                graph.setdefault(here, {})[room(name)] = str(path.relative_to(REPOSITORY))
    return graph


def map_lines() -> list[str]:
    graph = edges()
    lines = ["| room | uses |", "|---|---|"]
    for name in sorted(graph, key=lambda one: (LEVEL.get(one, 99), one)):
        used = sorted(graph[name], key=lambda one: (LEVEL.get(one, 99), one))
        lines.append(f"| `{name}` | {', '.join(f'`{one}`' for one in used) or 'nothing'} |")
    return lines


def with_map(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return "\n".join([before + BEGIN, "", *map_lines(), "", END + rest.partition(END)[2]])


def test_rooms_use_lower_rooms_only():
    for here, used in edges().items():
        assert here in LEVEL, f"{here} is a new room: give it a level in LEVELS"
        for other, path in used.items():
            assert LEVEL[other] < LEVEL[here], f"{path}: {here} must not use {other}; move what it needs to a lower room"


def test_at_most_ten_modules_are_at_the_root():
    assert len(list(PACKAGE.glob("*.py"))) <= 10


def test_the_map_in_the_documentation_shows_every_edge():
    page = PAGE.read_text(encoding="utf-8")
    assert with_map(page) == page, "the map is out of date: run `python tests/test_architecture.py`"


def test_the_tests_mirror_the_rooms():
    """Every room with more than one module has a folder of tests."""
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py") if len(list(path.parent.rglob("*.py"))) > 1}
    folders = {path.parent.name for path in (REPOSITORY / "tests").glob("*/test_*.py")}
    assert rooms - folders == set()


def test_no_two_files_of_tests_have_one_name():
    """pytest imports them by their bare names, and stops at the second."""
    names = [path.name for path in (REPOSITORY / "tests").rglob("test_*.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


if __name__ == "__main__":
    PAGE.write_text(with_map(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
