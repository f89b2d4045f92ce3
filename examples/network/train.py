"""A small neural network (Equinox), trained privately by ten clients; group lasso removes neurons that nobody needs.

Every local step is noised (privacy.mode = "every-step"), since nothing is known about a network's gradients but a clip.
"""

import argparse
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import fedpdm
from fedpdm.problem import CustomModel, custom_model, penalties

HIDDEN, CLASSES = 24, 3


def rings(examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points in the plane, in three rings: no linear model can tell them apart."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, examples)
    angle, distance = rng.uniform(0, 2 * np.pi, examples), (labels + rng.uniform(0.15, 0.85, examples)) / CLASSES
    return np.stack([distance * np.cos(angle), distance * np.sin(angle)], axis=1), labels


def network(seed: int) -> CustomModel:
    """A hidden layer of tanh neurons between two numbers and three scores, as functions of its arrays alone."""
    layers = eqx.nn.MLP(2, CLASSES, HIDDEN, depth=1, activation=jnp.tanh, key=jax.random.key(seed))
    layers = eqx.tree_at(lambda net: net.layers[0].weight, layers, replace_fn=lambda weight: 4 * weight)
    arrays, rest = eqx.partition(layers, eqx.is_inexact_array)

    def scores(arrays: eqx.nn.MLP, features: jax.Array) -> jax.Array:
        return jax.vmap(eqx.combine(arrays, rest))(features)

    def values(arrays: eqx.nn.MLP, features: jax.Array, labels: jax.Array) -> jax.Array:
        return -jnp.take_along_axis(jax.nn.log_softmax(scores(arrays, features)), labels[:, None], axis=1)[:, 0]

    return custom_model(values, scores, arrays, name="network")


def neurons(model: CustomModel) -> jax.Array:
    """The group of every parameter: the weights out of neuron j are group j; all else (-1) is left alone."""
    nothing = jax.tree.map(lambda array: jnp.full(array.shape, -1), model.unravel(model.loss().initial()))
    out = jnp.broadcast_to(jnp.arange(HIDDEN), (CLASSES, HIDDEN))
    return model.ravel(eqx.tree_at(lambda net: net.layers[1].weight, nothing, out))


def train(
    epsilon: float | None, strength: float, rounds: int, examples: int, out: Path | None = None, seed: int = 0
) -> tuple[fedpdm.FinishedRun, CustomModel]:
    """The finished run, and the model that knows how to read it."""
    model = network(seed)
    clients = [rings(examples, seed=client + 1) for client in range(10)]
    federation = fedpdm.federation_from_arrays(clients, *rings(3000, seed=0))
    settings = ["data.clients=10", "rounds.participants=10", "rounds.all_first=false", f"rounds.total={rounds}"]
    settings += ["algorithm.rho=0.1", "algorithm.server_rule=dual-memory", "local.batch_size=0", "local.steps=5"]
    settings += ["local.step_size=0.5", f"seed={seed}", "metrics.diagnose_every=10"]
    if epsilon:
        settings += ["privacy.mechanism=sound", f"privacy.epsilon={epsilon}", "privacy.mode=every-step", "privacy.clip=1.0"]
    penalty = penalties.group_lasso(strength, groups=neurons(model))
    config = fedpdm.load_config("plain", settings)
    return fedpdm.train(config, out, federation=federation, loss=model.loss, penalty=penalty), model


def neurons_left(run: fedpdm.FinishedRun, model: CustomModel) -> int:
    """Neurons with a weight out of them that is not zero."""
    return int((np.asarray(model.unravel(run.model).layers[1].weight) != 0).any(axis=0).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=3.0, help="privacy budget; 0: none")
    parser.add_argument("--strength", type=float, default=0.004, help="of the group lasso")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--examples", type=int, default=3000, help="per client")
    parser.add_argument("--out", type=Path, help="the run folder (default: a new one below runs/)")
    options = parser.parse_args()
    run, model = train(options.epsilon or None, options.strength, options.rounds, options.examples, options.out)
    left = neurons_left(run, model)
    print(f"test accuracy {run.summary['test_accuracy']:.3f}, {left} of {HIDDEN} neurons are left")
    print(run.guarantee)
    print(f"Run folder: {run.folder}")


if __name__ == "__main__":
    main()
