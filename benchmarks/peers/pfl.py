"""FedAvg on pfl-research: its simulated backend in one process, with a PyTorch model.

The clients of a round come from its sampler that uses everybody equally often, which its documentation recommends. The rows of
a round are drawn when a client's data set is made, for pfl itself goes through a data set in its order.
"""

import sys
import time
from pathlib import Path

sys.path.pop(0)  # this file would hide the package of the same name
sys.path.append(str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from workloads import BATCH, CLIENTS, EVALUATE_EVERY, PARTICIPANTS, STEPS, WORKLOADS, Workload, arrays

from peers import report

NEVER = 10**9


class Linear(torch.nn.Linear):
    def __init__(self, workload: Workload) -> None:
        super().__init__(workload.features, workload.classes, bias=False)
        torch.nn.init.zeros_(self.weight)

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(-self(inputs).gather(1, targets[:, None])).mean()

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Weighted]:
        return {"accuracy": Weighted((self(inputs).argmax(1) == targets).sum().item(), len(targets))}


class Clock(TrainingProcessCallback):
    """Starts after the evaluation that comes before the first round."""

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.began = time.perf_counter()
        return Metrics()


def main(workload: Workload) -> None:
    features, labels, test_features, test_labels = (torch.from_numpy(array) for array in arrays(workload))
    labels, test_labels = labels.long(), test_labels.long()

    def user(number: int) -> PyTorchTensorDataset:
        rows = torch.from_numpy(np.random.permutation(workload.rows)[: STEPS * BATCH])
        return PyTorchTensorDataset((features[number, rows], labels[number, rows]), user_id=str(number))

    users = FederatedDataset(user, get_user_sampler("minimize_reuse", list(np.random.permutation(CLIENTS))))
    backend = SimulatedBackend(training_data=users, val_data=users)
    module = Linear(workload)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    training = NNTrainHyperParams(
        local_batch_size=BATCH, local_num_epochs=None, local_num_steps=STEPS, local_learning_rate=workload.step_size
    )
    evaluation = NNEvalHyperParams(local_batch_size=None)
    test, clock = PyTorchTensorDataset((test_features, test_labels)), Clock()
    callbacks = [CentralEvaluationCallback(test, evaluation, frequency=EVALUATE_EVERY), clock]
    algorithm, rounds = FederatedAveraging(), 0
    for line in sys.stdin:
        rounds += int(line)
        plan = NNAlgorithmParams(rounds, evaluation_frequency=NEVER, train_cohort_size=PARTICIPANTS, val_cohort_size=0)
        model = algorithm.run(plan, backend, model, training, evaluation, callbacks, send_metrics_to_platform=False)
        seconds = time.perf_counter() - clock.began
        (accuracy,) = model.evaluate(test, eval_params=evaluation).to_simple_dict().values()
        report(seconds, accuracy)


if __name__ == "__main__":
    main(WORKLOADS[sys.argv[1]])
