"""FedAvg in plain PyTorch, all clients of a round at once: products of batched matrices and the gradient in closed form."""

import sys
from pathlib import Path

sys.path.pop(0)
sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from workloads import BATCH, CLIENTS, EVALUATE_EVERY, PARTICIPANTS, STEPS, WORKLOADS, Workload, arrays

from peers import serve


class Simulation:
    def __init__(self, workload: Workload) -> None:
        features, labels, test_features, test_labels = (torch.from_numpy(array) for array in arrays(workload))
        self.workload, self.done = workload, 0
        self.features = features.flatten(0, 1)  # the rows of all clients, one after another
        self.targets = torch.nn.functional.one_hot(labels.flatten().long(), workload.classes).float()
        self.test_features, self.test_labels = test_features, test_labels
        self.weights = torch.zeros(workload.classes, workload.features)

    def round(self) -> None:
        rows, scale = self.workload.rows, self.workload.step_size / BATCH
        clients = torch.randperm(CLIENTS)[:PARTICIPANTS]
        order = torch.rand(PARTICIPANTS, rows).argsort(1)[:, : STEPS * BATCH] + rows * clients[:, None]
        steps = order.reshape(PARTICIPANTS, STEPS, BATCH).transpose(0, 1).reshape(STEPS, -1)
        local = self.weights.repeat(PARTICIPANTS, 1, 1)
        for chosen in steps:
            x = self.features.index_select(0, chosen).view(PARTICIPANTS, BATCH, -1)
            target = self.targets.index_select(0, chosen).view(PARTICIPANTS, BATCH, -1)
            push = torch.bmm(x, local.transpose(1, 2)).neg_().sigmoid_().mul_(target)
            local.baddbmm_(push.transpose(1, 2), x, alpha=scale)
        self.weights = local.mean(0)

    def accuracy(self) -> float:
        return ((self.test_features @ self.weights.T).argmax(1) == self.test_labels).float().mean().item()

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.round()
            self.done += 1
            if self.done % EVALUATE_EVERY == 0:
                self.accuracy()


if __name__ == "__main__":
    torch.set_num_threads(2)
    with torch.inference_mode():
        simulation = Simulation(WORKLOADS[sys.argv[1]])
        serve(simulation.run, simulation.accuracy)
