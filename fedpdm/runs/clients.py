"""Facts about the clients of a simulation, stored beside the results for the report."""

from typing import Any

from fedpdm.engines.simulation.measures import label_counts
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.runs.simulated_ledger import client_name

__all__ = ["describe_clients"]

NOTE = (
    "simulation: the labels that a client holds are its private data. A simulator knows them; a deployment would not, and "
    "no privacy guarantee covers this file."
)


def describe_clients(simulation: Simulation) -> dict[str, Any]:
    """Return every client's examples, labels and participations, for clients.json.

    Parameters
    ----------
    simulation : Simulation
        The simulation at its end.

    Returns
    -------
    dict
        Values for JSON.
    """
    federation = simulation.federation
    names = federation.client_names or [client_name(i).removeprefix("client-") for i in range(federation.clients)]
    counts = zip(federation.sizes.tolist(), federation.label_counts.tolist(), simulation.taken_part().tolist(), strict=True)
    return {
        "note": NOTE,
        **label_counts(federation.test_labels, federation.classes),
        "clients": [
            {"client": client_name(i), "name": names[i], "examples": examples, "labels": labels, "participations": times}
            for i, (examples, labels, times) in enumerate(counts)
        ],
    }
