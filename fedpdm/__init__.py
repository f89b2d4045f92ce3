"""Federated primal-dual learning of sparse models, with differential privacy and thin links."""

import importlib
from typing import TYPE_CHECKING, Any

from fedpdm.version import __version__

if TYPE_CHECKING:
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
    from fedpdm.engines.simulation.simulation import Schedule, Simulation
    from fedpdm.estimator import FedPDMClassifier
    from fedpdm.problem import Problem, logistic, penalties, softmax
    from fedpdm.rounds import Setup

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

# Where each name lives. They are imported when first used, so that `fedpdm --help` does not wait for JAX.
_HOMES = {
    "fedpdm.algorithms": ("LocalPlan", "fedpdm"),
    "fedpdm.config": ("Config", "load_config"),
    "fedpdm.data": (
        "Federation",
        "dirichlet",
        "federation_from_arrays",
        "iid",
        "labels_per_client",
        "load_dataset",
        "make_federation",
        "one_class_per_client",
    ),
    "fedpdm.engines.simulation.simulation": ("Schedule", "Simulation"),
    "fedpdm.estimator": ("FedPDMClassifier",),
    "fedpdm.problem": ("Problem", "logistic", "penalties", "softmax"),
    "fedpdm.rounds": ("Setup",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'fedpdm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
