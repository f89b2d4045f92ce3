"""The federated algorithms; `fedpdm.choices.ALGORITHMS` is the table of all of them."""

from fedpdm.algorithms.aligned import afedpd
from fedpdm.algorithms.averaging import fedavg, fedprox
from fedpdm.algorithms.base import Algorithm, Broadcast, Reports
from fedpdm.algorithms.control_variates import scaffold
from fedpdm.algorithms.dynamic import feddyn
from fedpdm.algorithms.local import Examples, LocalInfo, LocalPlan
from fedpdm.algorithms.primal_dual import fedpdm
from fedpdm.algorithms.splitting import feddr

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
    "feddr",
    "afedpd",
    "fedpdm",
]
