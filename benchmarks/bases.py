"""MNIST on few directions, 100 clients with four labels each (add/remove, delta = 1e-5, all clients in every round).

    python benchmarks/bases.py public [--seeds 5]     # scattering on directions of made-up strokes, epsilon 0.2, 1 and 3
    python benchmarks/bases.py private [--seeds 3]    # pixels on 100 directions of a noised second moment, epsilon 1

The public basis has the preset private-mapped and no other setting: directions, clip, steps and rounds follow from the rule of
docs/features.md. Settings of the private one are those of clothes (`encoders.py`). Finished runs are kept in
docs/results/benchmarks/encoders.jsonl.
"""

import argparse

from encoders import CLOTHES, LINEAR, report

PIXELS = ["data.features=raw", "data.scaling=centred-root", *LINEAR]
BASES = {"none": ["data.basis=none"], "private, 100 directions": ["data.basis=private", "data.basis_size=100"]}
SUMS = ["privacy.trust=cohorts", "compression.values=float32"]
MNIST = ["data.name=mnist", "data.clients=100", "data.partition=labels", "data.labels_per_client=4", "metrics.diagnose_every=0"]
EPSILONS = (0.2, 1.0, 3.0)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("public", "private"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", default=["auto"], help="of the public basis")
    given = parser.parse_args()
    if given.part == "public":
        for epsilon in EPSILONS:
            for size in given.sizes:
                settings = [*MNIST, f"privacy.epsilon={epsilon}", f"data.basis_size={size}"]
                report("strokes by the rule", f"epsilon {epsilon}, {size}", "private-mapped", settings, given.seeds)
        return
    steps = [setting for setting in CLOTHES["local"] if not setting.startswith("data.")]
    for noise, more in (("local", []), ("cohort of 100", SUMS)):
        for name, basis in BASES.items():
            report("pixels", f"{noise}, basis {name}", "demo", [*PIXELS, *steps, *basis, *more], given.seeds)


if __name__ == "__main__":
    main()
