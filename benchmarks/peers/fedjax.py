"""FedAvg on FedJAX: its own algorithm, sampler and evaluation, with a Haiku model, and its default way through the clients."""

import sys
from pathlib import Path

sys.path.pop(0)  # this file would hide the package of the same name
sys.path.append(str(Path(__file__).resolve().parents[1]))

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
from workloads import BATCH, EVALUATE_EVERY, PARTICIPANTS, STEPS, WORKLOADS, Workload, arrays

from peers import serve


def train_loss(batch: fedjax.BatchExample, scores: jax.Array) -> jax.Array:
    return jax.nn.softplus(-jnp.take_along_axis(scores, batch["y"][:, None], 1)[:, 0])


class Simulation:
    def __init__(self, workload: Workload) -> None:
        features, labels, test_features, test_labels = arrays(workload)
        clients = {f"{i:03}": {"x": x, "y": y} for i, (x, y) in enumerate(zip(features, labels, strict=True))}
        data = fedjax.InMemoryFederatedData(clients)
        self.sampler = fedjax.client_samplers.UniformGetClientSampler(data, PARTICIPANTS, seed=0)
        self.test = fedjax.ClientDataset({"x": test_features, "y": test_labels})
        self.model = fedjax.create_model_from_haiku(
            hk.transform(lambda batch: hk.Linear(workload.classes, with_bias=False, w_init=jnp.zeros)(batch["x"])),
            {"x": features[0, :1], "y": labels[0, :1]},
            train_loss,
            {"accuracy": fedjax.metrics.Accuracy()},
        )
        self.algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            fedjax.model_grad(self.model),
            fedjax.optimizers.sgd(workload.step_size),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=None, num_steps=STEPS),
        )
        self.state = self.algorithm.init(self.model.init(jax.random.PRNGKey(0)))
        self.done = 0
        self.accuracy()

    def accuracy(self) -> float:
        batches = self.test.padded_batch(batch_size=1024)
        return float(fedjax.evaluate_model(self.model, self.state.params, batches)["accuracy"])

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.state, _ = self.algorithm.apply(self.state, self.sampler.sample())
            self.done += 1
            if self.done % EVALUATE_EVERY == 0:
                self.accuracy()
        jax.block_until_ready(self.state.params)


if __name__ == "__main__":
    simulation = Simulation(WORKLOADS[sys.argv[1]])
    serve(simulation.run, simulation.accuracy)
