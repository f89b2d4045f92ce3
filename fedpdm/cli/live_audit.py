"""`fedpdm privacy canaries`, before a job, and `fedpdm privacy audit --target live`, after it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedpdm.errors import ConfigError, require_extra

__all__ = ["audit_live", "canaries"]


def canaries(
    rows: Annotated[Path, typer.Argument(help="The client's rows: CSV, Parquet, NPZ or LibSVM.")],
    out: Annotated[Path, typer.Option(help="New file for the node: some of the canaries are left out.")],
    coins: Annotated[Path, typer.Option(help="New file for the coins. It is as private as the rows.")],
    count: Annotated[int, typer.Option(min=2, help="How many rows are canaries; half of them are left out.")] = 100,
) -> None:
    """Prepare an audit of a job on real rows: choose canaries, toss a coin for each, leave out those that show tails.

    \b
    Example:
      fedpdm privacy canaries rows.csv --out rows-for-node.csv --coins coins.json --count 100
    """
    require_extra("flwr", "flower", "An audit of a job")
    from fedpdm.audit.live import toss

    tossed = toss(rows, out, coins, count)
    print(f"{out}: {count - sum(tossed.there)} of {count} canaries are left out. Let the node read it (data-path), with")
    print("keep_messages = true under [audit] of its policy. Keep the coins away from everybody who runs the job.")


def audit_live(state_dir: Path | None, coins: Path | None, job: str | None, as_json: bool) -> None:
    """Guess the coins from the messages of a job.

    Parameters
    ----------
    state_dir, coins, job, as_json
        As on the command line.
    """
    require_extra("flwr", "flower", "An audit of a job")
    from fedpdm.audit.live import audit_job, read_coins
    from fedpdm.audit.verdict import to_json
    from fedpdm.engines.flower.client.held_jobs import held_digests

    if state_dir is None or coins is None:
        raise ConfigError("--target live needs --state-dir and --coins.")
    found = [digest for digest in held_digests(state_dir) if digest.startswith(job or "")]
    if len(found) != 1:
        raise ConfigError(f"{state_dir} holds {len(found)} jobs that may be meant: name one with --job DIGEST.")
    result = audit_job(state_dir, found[0], read_coins(coins))
    print(json.dumps(to_json(result), indent=2) if as_json else result.sentence)
    if result.breached:
        raise typer.Exit(1)
