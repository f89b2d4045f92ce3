"""Whether a change leaves the numbers as they are: digests of models that two checkouts train with the same settings.

    python benchmarks/digests.py                      # of this checkout
    python benchmarks/digests.py --checkout OLD       # beside those of another one, and how far the two are apart

Every model is trained by the command line of its checkout, in one process per checkout. A digest is of the bytes of the last
and of the averaged model. The settings name only keys that old checkouts know too.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parents[1]
DEMO = """
[data]
name = "digits"
clients = 20
partition = "labels"
labels_per_client = 4
features = "scattering"
radius = 1.0
[problem]
loss = "softmax"
penalty = "l1"
gamma = 0.0001
[algorithm]
name = "fedpdm"
rho = 0.005
server_rule = "dual-memory"
[local]
steps = 10
batch_size = 0
step_size = 3.9
[rounds]
total = 10
participants = 6
sampling = "cycle"
all_first = false
[privacy]
mechanism = "sound"
epsilon = 1.0
clip = 0.5
"""
SMALL = {"data.name": "digits", "data.clients": 10, "rounds.participants": 4, "rounds.total": 12, "local.step_size": 0.05}
SOUND = {"privacy.mechanism": "sound", "privacy.epsilon": 3.0, "data.scaling": "unit", "local.batch_size": 0}
PAPER = {"privacy.mechanism": "paper", "privacy.epsilon": 20.0, "local.steps": 10}
ALGORITHMS = ("fedpdm", "fedavg", "fedprox", "scaffold", "feddyn")
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "demo on digits": ("demo", {}),
    **{name: ("plain", SMALL | {"algorithm.name": name}) for name in ALGORITHMS},
    **{f"{name}, sound": ("plain", SMALL | SOUND | {"algorithm.name": name}) for name in ALGORITHMS},
    "fedpdm, paper": ("plain", SMALL | PAPER | {"algorithm.name": "fedpdm"}),
    "fedpdm, a tenth of the coordinates": ("plain", SMALL | {"compression.uplink": 0.1}),
}

# What a checkout runs: takes lists of arguments, and trains one model after the other in the folder where it is.
WORKER = """
import contextlib, io, json, sys
from importlib import import_module
from pathlib import Path
import fedpdm
rooms = (Path(fedpdm.__file__).parent / "cli" / "main.py").exists()
main = import_module("fedpdm.cli.main" if rooms else "fedpdm.cli").main
for number, arguments in enumerate(json.loads(sys.argv[1])):
    with contextlib.redirect_stdout(io.StringIO()):
        sys.argv = ["fedpdm", *arguments, "--quiet", "--out", str(number)]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
"""


def models(checkout: Path, cases: list[str]) -> dict[str, dict[str, np.ndarray]]:
    """Train the cases with a checkout; returns the arrays of each."""
    with tempfile.TemporaryDirectory() as folder:
        demo = Path(folder) / "demo.toml"
        demo.write_text(DEMO)
        runs = []
        for case in cases:
            preset, settings = CASES[case]
            source = str(demo) if preset == "demo" else preset
            runs.append(["run", source, *(f"--set={key}={json.dumps(value)}" for key, value in settings.items())])
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        command = [sys.executable, "-c", WORKER, json.dumps(runs)]
        subprocess.run(command, env=environment, cwd=folder, check=True)
        found = {}
        for number, case in enumerate(cases):
            arrays = load_file(Path(folder) / str(number) / "model.safetensors")
            found[case] = {name: arrays[name] for name in ("model", "averaged_model")}
        return found


def digest(arrays: dict[str, np.ndarray]) -> str:
    """Return a short name of the bytes."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())).hexdigest()[:12]


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> str:
    """Return the largest difference of a weight, over the largest weight, in words."""
    if digest(one) == digest(other):
        return "the same bits"
    largest = max(float(np.abs(one[name] - other[name]).max() / np.abs(one[name]).max()) for name in one)
    return f"differs by {largest:.1e} of the largest weight"


def main() -> None:
    """Print a line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="another checkout to compare with")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    options = parser.parse_args()
    here = models(HERE, options.cases)
    other = models(options.checkout.resolve(), options.cases) if options.checkout else None
    for case in options.cases:
        print(
            f"{case:36}{digest(here[case])}" + (f"  {digest(other[case])}  {apart(here[case], other[case])}" if other else "")
        )


if __name__ == "__main__":
    main()
