"""MNIST on few directions, 100 clients with four labels each (add/remove, delta = 1e-5, all clients in every round).

    python benchmarks/bases.py public [--seeds 5]     # scattering on directions of made-up strokes, epsilon 0.2, 1 and 3
    python benchmarks/bases.py private [--seeds 3]    # pixels on 100 directions of a noised second moment, epsilon 1

Settings of the public basis were chosen on 10,000 training images that were held out; those of the private one are of clothes
(`encoders.py`). Finished runs are kept in docs/results/benchmarks/encoders.jsonl.
"""

import argparse

from encoders import CLOTHES, LINEAR, report

PIXELS = ["data.features=raw", "data.scaling=centred-root", *LINEAR]
BASES = {"none": ["data.basis=none"], "private, 100 directions": ["data.basis=private", "data.basis_size=100"]}
SUMS = ["privacy.trust=cohorts", "compression.values=float32"]
CHOSEN = {  # by epsilon
    0.2: ["rounds.total=20", "algorithm.rho=0.025", "local.step_size=20.0", "privacy.clip=0.35"],
    1: ["rounds.total=40", "algorithm.rho=0.02", "local.step_size=25.0", "privacy.clip=0.5"],
    3: ["rounds.total=80", "algorithm.rho=0.01", "local.step_size=50.0", "privacy.clip=0.35"],
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("public", "private"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", default=["auto"], help="of the public basis")
    given = parser.parse_args()
    if given.part == "public":
        for epsilon, settings in CHOSEN.items():
            every = [*LINEAR, *settings, f"privacy.epsilon={epsilon}"]
            for size in given.sizes:
                report("strokes", f"epsilon {epsilon}, {size}", "demo", [*every, f"data.basis_size={size}"], given.seeds)
        return
    steps = [setting for setting in CLOTHES["local"] if not setting.startswith("data.")]
    for noise, more in (("local", []), ("cohort of 100", SUMS)):
        for name, basis in BASES.items():
            report("pixels", f"{noise}, basis {name}", "demo", [*PIXELS, *steps, *basis, *more], given.seeds)


if __name__ == "__main__":
    main()
