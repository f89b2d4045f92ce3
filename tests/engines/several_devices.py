"""Run by test_large_federations.py in a process that sees several devices."""

import json
import sys
from pathlib import Path

import jax
import numpy as np

from fedpdm.config import load_config
from fedpdm.engines.simulation.build import build_simulation

sys.path.insert(0, str(Path(__file__).parents[1]))  # this is no test, so pytest has not put its folder there
from conftest import random_federation


def main() -> None:
    found = {"devices": jax.device_count()}
    federation = random_federation([12] * 8)
    for settings in json.loads(sys.argv[1]):
        simulation = build_simulation(load_config("plain", settings), federation)
        rows = list(simulation.run())
        name = " ".join(settings)
        found[name] = {"model": np.asarray(simulation.model).tolist(), "shared_by": simulation.devices, "last": rows[-1]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
