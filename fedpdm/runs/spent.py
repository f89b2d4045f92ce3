"""The spending of every client of a run: from the ledger or, for a deployment, by the number of the server's requests."""

import json
from pathlib import Path
from typing import Any, Literal

from fedpdm.data.schema import Schema, read_schema
from fedpdm.errors import UserError
from fedpdm.privacy.ledger import Ledger
from fedpdm.runs.folder import RunFolder
from fedpdm.runs.integrity import require_unchanged

__all__ = ["read_accounts"]

Source = Literal["ledger", "asked"]


def read_accounts(run: Path) -> tuple[Source, list[dict[str, Any]]]:
    """Return every client's account, with the keys of `Ledger.accounts` and its name.

    Parameters
    ----------
    run : Path
        A run folder.

    Returns
    -------
    source : str
        "ledger": the run's own ledger. "asked": the most that a deployment's clients can have spent; their actual spending is
        in their own ledgers, which the server does not see.
    accounts : list of dict
        One account per client. `unit` is what the guarantee is for, and `schema_epsilon` what the schema cost before training.
    """
    require_unchanged(run)
    folder = RunFolder(run)
    manifest = folder.manifest() if folder.manifest_path.is_file() else {}
    if manifest.get("engine") == "flower":
        return "asked", _asked(folder)
    path = run / "ledger.sqlite"
    if not path.is_file():
        if folder.manifest_path.is_file() and folder.needs_ledger():
            raise UserError(f"{path} is missing: it says what was spent. Take it from a backup.")
        raise UserError(f"{run} has no ledger: it is not a run under the sound mechanism.")
    with Ledger(path) as ledger:
        accounts = ledger.accounts()
    if not accounts:
        raise UserError(f"The ledger of {run} has no clients yet.")
    names, about = _client_names(folder), {"unit": _unit(folder), "schema_epsilon": _schema_epsilon(folder)}
    return "ledger", [account | {"name": names.get(account["client"], account["client"])} | about for account in accounts]


def _schema(folder: RunFolder) -> Schema | None:
    return read_schema(folder.schema_path) if folder.schema_path.is_file() else None


def _unit(folder: RunFolder) -> str:
    """Return the unit of the guarantee in words, also for a run that has not ended."""
    if summary := folder.summary():
        return summary["unit"]
    schema = _schema(folder)
    if folder.config().privacy.unit == "client":
        return "all examples of one client"
    return f"all rows of one {schema.unit_column}" if schema and schema.unit_column else "one example of one client"


def _schema_epsilon(folder: RunFolder) -> float:
    """Return what the schema cost before training; no client's ledger has it."""
    schema = _schema(folder)
    return schema.cost.epsilon if schema and schema.cost else 0.0


def _asked(folder: RunFolder) -> list[dict[str, Any]]:
    """Bound the spending in a deployment: a client answers at most as often as the server asked and the plan allows."""
    summary = folder.summary()
    if summary is None or not folder.clients_path.is_file():
        raise UserError(f"The deployed run in {folder.path} is not finished: its server has not written its requests yet.")
    if summary["mechanism"] != "sound" or summary["epsilon"] is None:
        raise UserError(f"Nothing is guaranteed about the run in {folder.path}: {summary['guarantee']}")
    delta, relation = summary["delta"], summary["relation"]
    budget = summary.get("epsilon_of_job") or folder.config().privacy.epsilon or 0.0  # older runs lack the first
    accounts = []
    for client in json.loads(folder.clients_path.read_bytes())["clients"]:
        spent = client["epsilon_at_most"]
        accounts.append(
            {
                "client": client["client"],
                "name": client["client"],
                "epsilon": budget,
                "delta": delta,
                "relation": relation,
                "unit": summary["unit"],
                "releases": min(client["asked"], summary["participations"]),
                "epsilon_spent": spent,
                "epsilon_left": max(budget - spent, 0.0),
                "schema_epsilon": 0.0,  # a job takes no schema that has a cost
            }
        )
    return accounts


def _client_names(folder: RunFolder) -> dict[str, str]:
    """Return the clients' names in the user's own table."""
    if not folder.clients_path.is_file():
        return {}
    clients = json.loads(folder.clients_path.read_text(encoding="utf-8"))["clients"]
    return {client["client"]: client["name"] for client in clients if client["client"] != f"client-{client['name']}"}
