"""The federated algorithms, one file each, and the table of all of them."""

from collections.abc import Callable

from fedpdm.algorithms.base import Algorithm, Reports
from fedpdm.algorithms.fedpdm import fedpdm
from fedpdm.algorithms.local import Examples, LocalInfo, LocalPlan

__all__ = ["Algorithm", "Reports", "Examples", "LocalInfo", "LocalPlan", "fedpdm", "ALGORITHMS"]

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {"fedpdm": fedpdm}
