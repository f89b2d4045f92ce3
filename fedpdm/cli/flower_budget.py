"""The commands `fedpdm flower budget ...`: an operator's decisions about a node's budget."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["budget_app"]

budget_app = typer.Typer(no_args_is_help=True, help="Decide about a node's budget.")


@budget_app.callback()
def _group() -> None:
    """Keep `accept` a separate command while it is the only one."""


@budget_app.command("accept")
def accept(
    state_dir: Annotated[Path, typer.Argument(help="The node's state-dir.")],
    policy: Annotated[Path, typer.Option(help="The node's policy.")],
    reason: Annotated[str, typer.Option(help="Why this is right; it stays in the ledger.")],
    spent: Annotated[float | None, typer.Option(help="Epsilon spent so far, in all; needed if the ledger is in doubt.")] = None,
    data_path: Annotated[Path | None, typer.Option(help="The node's data-path, if it has one.")] = None,
    client: Annotated[int, typer.Option(help="The node's number.")] = 0,
    data_dir: Annotated[Path | None, typer.Option(help="The node's data-dir, if it has one.")] = None,
) -> None:
    """Open a budget that counts as used up: a ledger that is missing, altered or an old copy, or a policy that allows more.

    \b
    Example:
      fedpdm flower budget accept /var/lib/fedpdm --policy policy.toml --data-path rows.csv --spent 0.4 --reason "disk replaced"
    """
    from fedpdm.engines.flower.client.books import accept as accept_books
    from fedpdm.engines.flower.client.node_data import NodeSource
    from fedpdm.engines.flower.client.policy import load_policy
    from fedpdm.engines.flower.client.seal import seal_of
    from fedpdm.engines.flower.client.store import open_store
    from fedpdm.privacy.ledger import Budget

    terms = load_policy(policy)
    seal = seal_of(NodeSource(client, data_path, None, data_dir), terms.seals)
    with open_store(state_dir) as store:
        trouble = accept_books(state_dir, store, Budget(**terms.budget.model_dump()), seal, reason, spent)
    print(f"Accepted. It was: {trouble}")
