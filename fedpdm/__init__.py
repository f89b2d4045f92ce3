"""Federated primal-dual learning of sparse models, with differential privacy and thin links."""

from typing import TYPE_CHECKING, Any

from fedpdm.algorithms import LocalPlan, fedpdm
from fedpdm.config import Config, load_config
from fedpdm.data import (
    Federation,
    dirichlet,
    federation_from_arrays,
    iid,
    labels_per_client,
    load_dataset,
    make_federation,
    one_class_per_client,
)
from fedpdm.engines.simulation import Schedule, Simulation
from fedpdm.problem import Problem, logistic, penalties, softmax
from fedpdm.rounds import Setup
from fedpdm.version import __version__

if TYPE_CHECKING:
    from fedpdm.estimator import FedPDMClassifier

__all__ = [
    "LocalPlan",
    "fedpdm",
    "Config",
    "load_config",
    "Federation",
    "dirichlet",
    "federation_from_arrays",
    "FedPDMClassifier",
    "iid",
    "labels_per_client",
    "load_dataset",
    "make_federation",
    "one_class_per_client",
    "Schedule",
    "Simulation",
    "Problem",
    "logistic",
    "penalties",
    "softmax",
    "Setup",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "FedPDMClassifier":  # late, since scikit-learn takes longer to import than all the rest
        from fedpdm.estimator import FedPDMClassifier

        return FedPDMClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
