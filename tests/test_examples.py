"""Examples that no other test runs."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_mnist_from_python(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "mnist" / "train.py"), "--rounds", "5", "--epsilon", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Differential privacy with epsilon = 1 and delta = 1e-05" in done.stdout
    found = {name: float(value) for name, value in re.findall(r"(with|without) privacy: test accuracy (0\.\d+)", done.stdout)}
    assert found["without"] > 0.7  # after five rounds
    assert 0.4 < found["with"] < found["without"] + 0.03
