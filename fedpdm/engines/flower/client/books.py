r"""A node's ledger, compared at every opening with its stored messages and with a seal outside of its folder.

Formal guarantee: an opened ledger records at least the spending for the messages that left this node, unless an operator has
decided otherwise, with a reason on record. Assumptions: a message is first recorded in the ledger, then in the seal, then among
the messages (`client.answer`); messages or seal, at least one of the two, are neither lost nor replaced by an older copy.
*Proof.* A ledger that opens holds what was written, or is an older copy (`fedpdm.privacy.chain`). Take the last message that
left. Its spending is in the ledger's head H at that time, and H was written to the message's row and to the seal. If the ledger
is older than H, it does not hold H. If the message's row exists, the comparison shows this. If it does not exist, the seal is
as assumed: it has H, or a later head that no ledger without H holds, and the comparison shows this too. A new ledger holds
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

ACCOUNT = "this client"  # one account for all jobs, whatever the client's number in them
WAY_OUT = "Restore the newest copy, or let an operator decide: `fedpdm flower budget accept --help`."


class BudgetClosed(UserError):
    """Records that contradict each other: the spending is unknown, so the budget counts as used up."""


@contextmanager
def open_ledger(folder: Path, store: Store, seal: Seal | None = None) -> Iterator[Ledger]:
    """Open the ledger for reading; a contradiction raises BudgetClosed.

    Parameters
    ----------
    folder, store
        The state folder, and the store that holds its lock.
    seal : Seal, optional
        The seal to compare with.

    Returns
    -------
    context manager
        The `Ledger`.
    """
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
    """Open the ledger of a state folder, if it agrees with the messages and with the seal. Guarantee: head of the module.

    Parameters
    ----------
    folder, store
        The state folder, and the store that holds its lock.
    budget
        The policy's budget. A tighter one than before takes effect; a larger one is refused.
    seal
        See `fedpdm.engines.flower.client.seal`.

    Returns
    -------
    context manager
        The `Ledger`.
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
    """Open a closed budget by an operator's decision.

    Parameters
    ----------
    folder, store, budget, seal
        As in `open_books`.
    reason
        Why this is right; it stays in the ledger.
    spent
        The whole spending so far, as epsilon at the budget's delta and relation. It is needed unless the only change is a
        larger budget. It never lowers the recorded spending of a ledger that can be read.

    Returns
    -------
    str
        The contradiction that closed the budget.
    """
    try:
        with open_books(folder, store, budget, seal):
            pass
    except BudgetClosed as error:
        trouble = str(error)
    else:
        raise ConfigError("Ledger, messages, seal and policy agree: there is nothing to accept.")
    if not reason.strip():
        raise ConfigError("Expected a reason: it stays on record.")
    try:
        ledger = _open(folder, store)
    except LedgerDamaged:
        ledger = None
    whole = ledger is not None and _trouble(ledger, store, seal) is None
    if spent is None and not whole:
        raise ConfigError(
            f"{trouble} To continue, give the epsilon spent in all with --spent: the server's metrics.jsonl lists the rounds "
            "that this client took part in."
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
    """Return what contradicts the ledger, or None."""
    for head in store.heads():
        if not ledger.chain.holds(head):
            return f"the ledger {ledger.path} is an older copy, or another one: it lacks messages that have left"
    if seal is None:
        return None
    try:
        return seal.trouble(ledger.chain, new=not ledger.accounts())
    except OSError as error:
        return (
            f"the seal {seal.path} cannot be used: {error.strerror}; set a writable folder in the policy "
            '(seals = "..." under [ledger])'
        )


def _set_aside(folder: Path) -> None:
    """Rename a ledger that cannot be read."""
    number = len(list(folder.glob("ledger-damaged-*.sqlite"))) + 1
    for suffix in ("", "-wal", "-shm"):
        path = folder / f"ledger.sqlite{suffix}"
        if path.exists():
            path.rename(folder / f"ledger-damaged-{number}.sqlite{suffix}")
