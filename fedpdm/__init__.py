"""Federated primal-dual learning of sparse models, with differential privacy and thin links."""

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

__all__ = [
    "LocalPlan",
    "fedpdm",
    "Config",
    "load_config",
    "Federation",
    "dirichlet",
    "federation_from_arrays",
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
