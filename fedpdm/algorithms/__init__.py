"""The federated algorithms, one file each, and the table of all of them."""

from collections.abc import Callable

from fedpdm.algorithms.base import Algorithm, Broadcast, Reports
from fedpdm.algorithms.fedavg import fedavg, fedprox
from fedpdm.algorithms.feddyn import feddyn
from fedpdm.algorithms.fedpdm import fedpdm
from fedpdm.algorithms.local import Examples, LocalInfo, LocalPlan
from fedpdm.algorithms.scaffold import scaffold

__all__ = [
    "Algorithm",
    "Broadcast",
    "Reports",
    "Examples",
    "LocalInfo",
    "LocalPlan",
    "fedavg",
    "fedprox",
    "scaffold",
    "feddyn",
    "fedpdm",
    "ALGORITHMS",
]

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "fedpdm": fedpdm,
}
