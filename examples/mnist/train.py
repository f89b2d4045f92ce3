"""MNIST from Python: a hundred clients with four digits each, one sparse linear model, with and without privacy.

    python examples/mnist/train.py [--rounds 20] [--epsilon 1.0]

Both runs are from pixels. `fedpdm run demo` does the same behind wavelets, with a report at its end.
"""

import argparse

import fedpdm


def train(config: fedpdm.Config) -> fedpdm.FinishedRun:
    """Run all rounds, then print a line for every fifth."""
    run = fedpdm.train(config)
    for row in run.rows[4::5]:
        print(f"  round {row['round']}: accuracy {row['test_accuracy']:.3f}, {row['nonzero_fraction']:.0%} non-zero")
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    arguments = parser.parse_args()
    pixels = ["data.features=raw", "data.scaling=blurred", f"rounds.total={arguments.rounds}", "metrics.diagnose_every=100"]

    print("Without privacy:")
    plain = train(
        fedpdm.load_config("demo", [*pixels, "privacy.mechanism=none", "privacy.epsilon=", "privacy.delta=", "privacy.clip="])
    )
    print("With privacy:")
    private = train(fedpdm.load_config("demo", [*pixels, f"privacy.epsilon={arguments.epsilon}"]))
    print(private.guarantee)
    for name, run in (("without", plain), ("with", private)):
        print(f"{name} privacy: test accuracy {run.summary['test_accuracy']:.4f}; run folder {run.folder}")


if __name__ == "__main__":
    main()
