"""The schema of a table in a job: which one is deployed, and its digest."""

import hashlib
import json
from typing import Any

from fedpdm.data.schema import Schema
from fedpdm.errors import ConfigError

__all__ = ["check_table", "schema_digest", "digest_of"]


def check_table(schema: Schema) -> None:
    """Refuse a schema that no node may use: one that comes from rows.

    Parameters
    ----------
    schema : Schema
        The schema of the job.

    Raises
    ------
    ConfigError
        With the remedy.
    """
    if schema.cost:
        raise ConfigError(
            f"The job's schema was inferred from rows at a cost of epsilon={schema.cost.epsilon:g}, which a node's ledger does "
            "not know: lower the budget in the policy by it, and remove the cost from the schema."
        )
    if schema.from_rows:
        raise ConfigError(
            "The job's schema was inferred from rows (from_rows = true), so it reveals something about them: write bounds and "
            "levels that are known without them, remove the line, and pass the file with --schema."
        )


def schema_digest(schema: Schema) -> str:
    """Return a digest of a schema. Two schemas with one digest encode every row in the same way.

    Parameters
    ----------
    schema : Schema
        Classes, columns, levels, their order and all bounds count.

    Returns
    -------
    str
        SHA-256, in hexadecimal.
    """
    return digest_of(schema.model_dump(mode="json", exclude={"client", "cost", "from_rows"}))


def digest_of(values: Any) -> str:
    """Return the SHA-256 of plain values, in hexadecimal.

    Parameters
    ----------
    values : Any
        What JSON can hold; the order of keys counts.

    Returns
    -------
    str
        64 digits.
    """
    return hashlib.sha256(json.dumps(values, sort_keys=False, allow_nan=False).encode()).hexdigest()
