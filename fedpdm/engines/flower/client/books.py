r"""A node's ledger, compared at every opening with the messages that it keeps and with a seal outside of its folder.

Formal guarantee: what an opened ledger holds is at least what was spent for the messages that left this node, unless an
operator has said otherwise, with a reason that is on record. Assumptions: what leaves is first on the ledger, then in the
seal, then among the messages (`client.answer`); of messages and seal at least one is neither lost nor replaced by an older
copy. *Proof.* A ledger that opens is what was written, or an older copy of it (`fedpdm.privacy.chain`). Take the last message
that left. Its spend is in the ledger's head H at that time, and H was written to the message's row and to the seal. If the
ledger is older than H, it does not hold H. If the message's row is there, this is seen. If it is not there, the seal is as
assumed: it has H, or a later head that no ledger without H holds, and this is seen too. A ledger that was made anew holds
neither. ∎
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpdm.engines.flower.client.seal import Seal
from fedpdm.engines.flower.client.store import Store
from fedpdm.errors import ConfigError, UserError
from fedpdm.privacy.ledger import Budget, Ledger, LedgerDamaged

__all__ = ["ACCOUNT", "BudgetClosed", "open_ledger", "open_books", "accept"]

ACCOUNT = "this client"  # one account for all jobs, and whatever number the client has in them
WAY_OUT = "Restore the newest copy, or let an operator decide: `fedpdm flower budget accept --help`."


class BudgetClosed(UserError):
    """Books that contradict each other: what was spent is unknown, so that the budget counts as used up."""


@contextmanager
def open_ledger(folder: Path, store: Store, seal: Seal | None = None) -> Iterator[Ledger]:
    """The ledger to look at: what contradicts it raises BudgetClosed. Without a `seal` none is looked at."""
    try:
        ledger = _open(folder, store)
    except LedgerDamaged as error:
        raise BudgetClosed(str(error)) from error
    with ledger:
        if trouble := _trouble(ledger, store, seal):
            raise BudgetClosed(f"The budget counts as used up: {trouble}. {WAY_OUT}")
        yield ledger


@contextmanager
def open_books(folder: Path, store: Store, budget: Budget, seal: Seal | None) -> Iterator[Ledger]:
    """The ledger of a state folder, if it agrees with the messages and with the seal. Guarantee: head of the module.

    Parameters
    ----------
    folder, store
        The state folder, and the store that holds its lock.
    budget
        The policy's. One that is tighter than before takes effect; a larger one is refused.
    seal
        See `fedpdm.engines.flower.client.seal`.
    """
    with open_ledger(folder, store, seal) as ledger:
        if seal:
            ledger.on_record = lambda head: seal.write(ledger.chain)
        try:
            ledger.open_budget(ACCOUNT, *budget)
        except ConfigError as error:
            raise BudgetClosed(str(error)) from error
        yield ledger


def accept(folder: Path, store: Store, budget: Budget, seal: Seal | None, reason: str, spent: float | None) -> str:
    """Open a budget that is closed, on an operator's word; returns what was wrong.

    Parameters
    ----------
    folder, store, budget, seal
        As in `open_books`.
    reason
        Why this is right; it stays on the ledger.
    spent
        All that was spent so far, as epsilon at the budget's delta and relation. Needed unless a larger budget is all there is
        to accept. It never lowers what a ledger that can be read has on record.
    """
    try:
        with open_books(folder, store, budget, seal):
            pass
    except BudgetClosed as error:
        trouble = str(error)
    else:
        raise ConfigError("The books agree with each other and with the policy: there is nothing to accept.")
    if not reason.strip():
        raise ConfigError("Expected a reason: it stays on record.")
    try:
        ledger = _open(folder, store)
    except LedgerDamaged:
        ledger = None
    whole = ledger is not None and _trouble(ledger, store, seal) is None
    if spent is None and not whole:
        raise ConfigError(
            f"{trouble} To go on, say with --spent how much epsilon was spent in all: the server's metrics.jsonl says in which "
            "rounds this client took part."
        )
    if ledger is None:
        _set_aside(folder)
        ledger = Ledger(folder / "ledger.sqlite")
    with ledger:
        ledger.change_budget(ACCOUNT, *budget, reason=f"{reason} ({trouble})")
        if spent is not None:
            ledger.carry(ACCOUNT, spent, reason)
        store.forget_heads()
        if seal:
            seal.write(ledger.chain)
    return trouble


def _open(folder: Path, store: Store) -> Ledger:
    path = folder / "ledger.sqlite"
    if not path.exists() and store.heads():
        raise LedgerDamaged(f"The privacy ledger {path} is missing, although messages have left. {WAY_OUT}")
    return Ledger(path)


def _trouble(ledger: Ledger, store: Store, seal: Seal | None) -> str | None:
    """What contradicts the ledger, if anything does."""
    for head in store.heads():
        if not ledger.chain.holds(head):
            return f"the ledger {ledger.path} is an older copy, or another one: messages have left that it does not know of"
    if seal is None:
        return None
    try:
        return seal.trouble(ledger.chain, new=not ledger.accounts())
    except OSError as error:
        return (
            f"the seal {seal.path} cannot be used: {error.strerror}; name a folder that can be written in the policy "
            '(seals = "..." under [ledger])'
        )


def _set_aside(folder: Path) -> None:
    """Keep a ledger that cannot be read under another name."""
    number = len(list(folder.glob("ledger-damaged-*.sqlite"))) + 1
    for suffix in ("", "-wal", "-shm"):
        path = folder / f"ledger.sqlite{suffix}"
        if path.exists():
            path.rename(folder / f"ledger-damaged-{number}.sqlite{suffix}")
