"""FedAvg on FedLab: its standalone pipeline, with its serial trainer, its synchronous server and PyTorch's data loaders."""

import sys
from pathlib import Path

sys.path.pop(0)  # this file would hide the package of the same name
sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils.functional import evaluate
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from workloads import BATCH, CLIENTS, EVALUATE_EVERY, PARTICIPANTS, STEPS, WORKLOADS, Workload, arrays

from peers import serve


def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(-scores.gather(1, labels[:, None])).mean()


class Clients(FedDataset):
    def __init__(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        super().__init__()
        self.num = len(features)
        self.parts = [TensorDataset(x, y) for x, y in zip(features, labels, strict=True)]

    def get_dataset(self, id: int, type: str = "train") -> TensorDataset:
        return self.parts[id]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader:
        part = self.parts[id]
        return DataLoader(part, batch_size, sampler=RandomSampler(part, num_samples=STEPS * batch_size))


class Trainer(FedAvgSerialClientTrainer):
    def setup_optim(self, epochs: int, batch_size: int, lr: float) -> None:
        super().setup_optim(epochs, batch_size, lr)
        self.criterion = loss


class Pipeline(StandalonePipeline):
    def __init__(self, handler: SyncServerHandler, trainer: Trainer, test: DataLoader) -> None:
        super().__init__(handler, trainer)
        self.test = test

    def accuracy(self) -> float:
        return evaluate(self.handler.model, loss, self.test)[1]

    def evaluate(self) -> None:
        if self.handler.round % EVALUATE_EVERY == 0:
            self.accuracy()

    def run(self, rounds: int) -> None:
        self.handler.global_round += rounds
        self.main()


def pipeline(workload: Workload) -> Pipeline:
    features, labels, test_features, test_labels = (torch.from_numpy(array) for array in arrays(workload))
    model = torch.nn.Linear(workload.features, workload.classes, bias=False)
    torch.nn.init.zeros_(model.weight)
    trainer = Trainer(model, CLIENTS)
    trainer.setup_dataset(Clients(features, labels.long()))
    trainer.setup_optim(1, BATCH, workload.step_size)
    handler = SyncServerHandler(model, 0, PARTICIPANTS / CLIENTS)
    return Pipeline(handler, trainer, DataLoader(TensorDataset(test_features, test_labels.long()), batch_size=1024))


if __name__ == "__main__":
    simulation = pipeline(WORKLOADS[sys.argv[1]])
    serve(simulation.run, simulation.accuracy)
