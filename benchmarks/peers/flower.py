"""FedAvg on Flower's simulation with Ray: its own strategy, and clients that compute in NumPy, on as many actors as cores.

One simulation lasts as long as the program: the server's function reads the lines. The time of the rounds is taken between the
strategy's calls of the evaluation, before the first round and after the last one.
"""

import os
import sys
import time
from functools import cache
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
if __name__ == "__main__":
    sys.path.pop(0)
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workloads import BATCH, CLIENTS, EVALUATE_EVERY, PARTICIPANTS, STEPS, WORKLOADS, arrays

from peers import report

data = cache(arrays)  # an actor and the server make it once

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """What a client does in a round: the gradient is in closed form."""
    workload = WORKLOADS[str(message.content["config"]["workload"])]
    features, labels, *_ = data(workload)
    client = int(context.node_config["partition-id"])
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    weights = weights.copy()
    rows = np.random.default_rng().permutation(workload.rows)[: STEPS * BATCH].reshape(STEPS, BATCH)
    here = np.arange(BATCH)
    for chosen in rows:
        x, y = features[client, chosen], labels[client, chosen]
        scores = (x @ weights.T)[here, y]
        push = np.zeros((BATCH, workload.classes), np.float32)
        push[here, y] = workload.step_size / BATCH / (1 + np.exp(scores))
        weights += push.T @ x
    metrics = MetricRecord({"num-examples": workload.rows})
    return Message(RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics}), reply_to=message)


def serve(grid: Grid, name: str) -> None:
    workload = WORKLOADS[name]
    *_, test_features, test_labels = data(workload)
    weights = ArrayRecord([np.zeros((workload.classes, workload.features), np.float32)])
    strategy = FedAvg(
        fraction_train=PARTICIPANTS / CLIENTS, fraction_evaluate=0.0, min_train_nodes=PARTICIPANTS, min_available_nodes=CLIENTS
    )
    done, times = 0, {}

    def accuracy(arrays: ArrayRecord) -> float:
        return float(((test_features @ arrays.to_numpy_ndarrays()[0].T).argmax(1) == test_labels).mean())

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        due = number > 0 and (done + number) % EVALUATE_EVERY == 0
        record = MetricRecord({"accuracy": accuracy(arrays)}) if due else None
        times[number] = time.perf_counter()
        return record

    for line in sys.stdin:
        rounds = int(line)
        config = ConfigRecord({"workload": name})
        weights = strategy.start(grid, weights, rounds, train_config=config, evaluate_fn=evaluate).arrays
        done += rounds
        report(times[rounds] - times[0], accuracy(weights))


def main(name: str) -> None:
    server_app = ServerApp()
    server_app.main()(lambda grid, context: serve(grid, name))
    run_simulation(server_app, client_app, CLIENTS, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


if __name__ == "__main__":
    from peers import flower  # under a name that Ray's actors can import it by, instead of getting a copy with every message

    flower.main(sys.argv[1])
