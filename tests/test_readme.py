"""What the README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_python_example_runs_and_learns():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.search(r"test accuracy (0\.\d+)", done.stdout)
    assert found is not None
    assert float(found[1]) > 0.9


def test_every_command_shown_exists():
    shown = re.findall(r"^    fedpdm (\w+)(?: (show|info|fetch|plan|spent|audit))?", README, re.MULTILINE)
    assert len(shown) >= 6
    for words in set(shown):
        command = [sys.executable, "-m", "fedpdm.cli", *filter(None, words), "--help"]
        assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0, words
