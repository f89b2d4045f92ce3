"""The data of the demo. Nothing is imported here, so that a wrong name is reported at once."""

from typing import Any

__all__ = ["DEMO_DATA", "TABLES"]

TABLES = "stays"  # a number, in a table of its own at every client: `demo_table`

# Settings that were tuned for these data sets in simulation
DEMO_DATA: dict[str, dict[str, Any]] = {
    "digits": {"data.scaling": "unit", "data.partition": "iid", "algorithm.rho": 0.05},
    "mnist": {"data.scaling": "blurred", "data.partition": "iid", "algorithm.rho": 0.005},
}
