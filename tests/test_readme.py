"""Every command and every piece of Python in the README and the docs is run.

A block after a comment `<!-- long: why -->` is not run; its options, presets and settings are checked.
"""

import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpdm.cli.main import app
from fedpdm.config import load_config, preset_names

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LONG = re.compile(r"<!-- long: .+? -->\n\n((?:    .*\n|\n(?=    ))+)")
COMMAND = re.compile(r"^    ((?:fedpdm|python) (?:.*\\\n)*.*)", re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """The commands in indented blocks, without comments, continued lines joined."""
    found = [re.sub(r"\s+#.*", "", line.replace("\\\n", " ")) for line in COMMAND.findall(text)]
    return [shlex.split(line) for line in found]


def pages() -> list[Path]:
    """README, then the pages in the order of the site, then all others."""
    nav = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    known = [DOCS / name for name in nav]
    others = [page for page in sorted(DOCS.rglob("*.md")) if page not in known]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *known, *others]


SHOWN = {page: page.read_text(encoding="utf-8") for page in pages()}


def is_pattern(words: list[str]) -> bool:
    """Whether a word is a placeholder for the reader's own value: STATE_DIR, RUN."""
    return any(re.fullmatch(r"[A-Z][A-Z_]+", word) for word in words)


RUN = [(page, words) for page, text in SHOWN.items() for words in commands(LONG.sub("", text)) if not is_pattern(words)]
CHECK = [(page, words) for page, text in SHOWN.items() for block in LONG.findall(text) for words in commands(block)]
CHECK += [(page, words) for page, text in SHOWN.items() for words in commands(LONG.sub("", text)) if is_pattern(words)]
PYTHON = [(page, code) for page, text in SHOWN.items() for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]


def names(shown: list[tuple[Path, list[str]]]) -> list[str]:
    return [f"{page.stem}-{' '.join(words[1:4])}" for page, words in shown]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all pages, so that a later one may use the runs of an earlier one."""
    made = tmp_path_factory.mktemp("reader")
    (made / "runs").mkdir()
    shutil.copytree(DOCS / "results" / "paper", made / "runs" / "reproduction")
    shutil.copytree(ROOT / "examples", made / "examples")
    return made


def test_there_is_something_to_run():
    assert len(RUN) > 20
    assert len(CHECK) > 10
    assert len(PYTHON) > 2


@pytest.mark.parametrize(("page", "words"), RUN, ids=names(RUN))
def test_command_works(folder, page, words):
    words, target = (words[: words.index(">")], words[-1]) if ">" in words else (words, None)
    program = {"fedpdm": ["-m", "fedpdm.cli.main"], "python": []}[words[0]]
    command = [sys.executable, *program, *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder)
    assert done.returncode == 0, done.stderr
    if target:
        (folder / target).write_text(done.stdout)


@pytest.mark.parametrize(("page", "words"), CHECK, ids=names(CHECK))
def test_long_command_is_spelt_right(page, words):
    words = words[1 : words.index(">") if ">" in words else None]
    if words == ["--install-completion"]:  # asked for help it would install first
        assert "--install-completion" in CliRunner().invoke(app, ["--help"]).output
        return
    shown = CliRunner().invoke(app, [*words, "--help"])  # options are parsed before help is given
    assert shown.exit_code == 0, shown.output
    settings = [value for key, value in pairwise(words) if key == "--set"]
    preset = next((word for word in words[1:2] if word in preset_names()), None)
    if preset:
        load_config(preset, settings)
    assert preset or not settings, f"{page}: cannot tell which settings {words} changes"


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=[page.stem for page, _ in PYTHON])
def test_python_runs(page, code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if found := re.search(r"test accuracy (0\.\d+)", done.stdout):
        assert float(found[1]) > 0.9


def test_links_between_files_lead_somewhere():
    for page, text in SHOWN.items():
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            assert "://" in target or (page.parent / target).exists(), f"{page}: {target}"


def test_every_test_that_a_page_names_exists():
    there = {name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    named = {name for text in SHOWN.values() for name in re.findall(r"`(test(?:_[A-Za-z0-9]+){4,})`", text)}
    assert len(named) > 30
    assert sorted(named - there) == []


def test_every_page_of_the_site_exists():
    named = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert len(named) > 15
    for name in named:
        assert (DOCS / name).is_file(), name
