"""The data of the demo. Nothing is imported here, so that a wrong name is reported at once."""

from typing import Any

__all__ = ["DEMO_DATA", "TABLES"]

TABLES = "stays"  # a number, in a table of its own at every client: `demo_table`

# Images behind scattering and a public basis; the rule (`privacy.defaults`) gives all other settings.
DEMO_DATA: dict[str, dict[str, Any]] = {"digits": {"data.scattering_scale": 1}, "mnist": {}}
