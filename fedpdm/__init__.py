"""Federated primal-dual learning of sparse models, with differential privacy and thin links."""

from importlib import import_module
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
    from fedpdm.engines.simulation import Schedule, Simulation
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

# Imported when first asked for: JAX takes a second, which `fedpdm --help` and a shell's completion cannot wait for.
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
    "fedpdm.engines.simulation": ("Schedule", "Simulation"),
    "fedpdm.problem": ("Problem", "logistic", "penalties", "softmax"),
    "fedpdm.rounds": ("Setup",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
