"""Federated primal-dual learning of sparse models, with differential privacy and compressed messages.

The package implements DP-FedPDM and BSDP-FedPDM, and replaces their privacy mechanism by one with a proof.

References
----------
Yiwei Li, Chien-Wei Huang, Shuai Wang, Chong-Yung Chi, Tony Q. S. Quek: "Privacy-preserving Federated Primal-Dual Learning for
Non-convex and Non-smooth Problems with Model Sparsification". The pages of the documentation call it "the paper".
"""

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from fedpdm.errors import require_extra

if TYPE_CHECKING:
    from fedpdm.algorithms import LocalPlan, afedpd, fedavg, feddr, feddyn, fedpdm, fedprox, scaffold
    from fedpdm.choices import (
        AlgorithmChoice,
        CommandChoice,
        FeatureMapChoice,
        LossChoice,
        MetricChoice,
        Option,
        PenaltyChoice,
        register,
    )
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
    from fedpdm.estimator import FedPDMClassifier, FedPDMRegressor
    from fedpdm.problem import Problem, logistic, penalties, softmax
    from fedpdm.rounds import Setup
    from fedpdm.runs.finished import FinishedRun
    from fedpdm.training import train
    from fedpdm.version import __version__

__all__ = [
    "LocalPlan",
    "fedavg",
    "fedprox",
    "scaffold",
    "feddyn",
    "feddr",
    "afedpd",
    "fedpdm",
    "AlgorithmChoice",
    "CommandChoice",
    "FeatureMapChoice",
    "LossChoice",
    "MetricChoice",
    "Option",
    "PenaltyChoice",
    "register",
    "Config",
    "load_config",
    "Federation",
    "dirichlet",
    "federation_from_arrays",
    "FedPDMClassifier",
    "FedPDMRegressor",
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
    "FinishedRun",
    "train",
    "__version__",
]

# Polars reads this when it is loaded. Its allocator keeps what was freed for a second, which would be a second table in memory.
# A process that another one with polars started inherits polars' own value, which nobody chose.
if os.environ.get("_RJEM_MALLOC_CONF") in (None, "dirty_decay_ms:500,muzzy_decay_ms:1000"):
    os.environ["_RJEM_MALLOC_CONF"] = "dirty_decay_ms:0,muzzy_decay_ms:0"

# Where each name lives. A name is imported when it is first used, so that `fedpdm --help` does not wait for JAX.
_HOMES = {
    "fedpdm.algorithms": ("LocalPlan", "fedavg", "fedprox", "scaffold", "feddyn", "feddr", "afedpd", "fedpdm"),
    "fedpdm.choices": (
        "AlgorithmChoice",
        "CommandChoice",
        "FeatureMapChoice",
        "LossChoice",
        "MetricChoice",
        "Option",
        "PenaltyChoice",
        "register",
    ),
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
    "fedpdm.estimator": ("FedPDMClassifier", "FedPDMRegressor"),
    "fedpdm.problem": ("Problem", "logistic", "penalties", "softmax"),
    "fedpdm.rounds": ("Setup",),
    "fedpdm.runs.finished": ("FinishedRun",),
    "fedpdm.training": ("train",),
    "fedpdm.version": ("__version__",),  # it is looked up among all installed packages
}

if importlib.util.find_spec("sklearn") is None:  # `from fedpdm import *` takes what there is
    __all__.remove("FedPDMClassifier")
    __all__.remove("FedPDMRegressor")


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            if home == "fedpdm.estimator":
                require_extra("sklearn", "sklearn", f"fedpdm.{name}")
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'fedpdm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
