"""MNIST from Python: a hundred clients with four digits each, one sparse linear model, with and without privacy.

    python examples/mnist/train.py [--rounds 20] [--epsilon 1.0]

Both runs are from pixels. `fedpdm run demo` does the same behind wavelets, with a report at its end.
"""

import argparse

from fedpdm.config import Config, load_config
from fedpdm.data.prepare import build_federation
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.engines.simulation.simulation import Simulation


def train(config: Config) -> Simulation:
    """Run all rounds, with a line for every fifth."""
    simulation = build_simulation(config, build_federation(config))
    for row in simulation.run():
        if row["round"] % 5 == 0:
            print(f"  round {row['round']}: accuracy {row['test_accuracy']:.3f}, {row['nonzero_fraction']:.0%} non-zero")
    return simulation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    arguments = parser.parse_args()
    pixels = ["data.features=raw", "data.scaling=blurred", f"rounds.total={arguments.rounds}", "metrics.diagnose_every=100"]

    print("Without privacy:")
    plain = train(
        load_config("demo", [*pixels, "privacy.mechanism=none", "privacy.epsilon=", "privacy.delta=", "privacy.clip="])
    )
    print("With privacy:")
    private = train(load_config("demo", [*pixels, f"privacy.epsilon={arguments.epsilon}"]))
    assert private.plan is not None
    print(private.plan.sentence())
    for name, simulation in (("without", plain), ("with", private)):
        print(f"{name} privacy: test accuracy {simulation.test_accuracy(simulation.model):.4f}")


if __name__ == "__main__":
    main()
