"""What a client's folder says about it: for whoever runs the node."""

from pathlib import Path
from typing import Any

from fedpdm.engines.flower.client.books import BudgetClosed, open_ledger
from fedpdm.engines.flower.client.store import Kept, open_store

__all__ = ["client_status"]


def client_status(folder: Path) -> dict[str, Any]:
    """Budget, jobs, last message and refusals, as plain values."""
    with open_store(folder, create=False) as store:
        messages = store.messages()
        refusals = [dict(zip(("at", "job", "round", "name", "reason"), row, strict=True)) for row in store.refusals()]
        budget, words, trouble = None, [], None
        try:
            with open_ledger(folder, store) as ledger:
                budget, words = next(iter(ledger.accounts()), None), ledger.words()
        except BudgetClosed as error:
            trouble = str(error)
    jobs = list(dict.fromkeys(message.job for message in messages))
    return {
        "budget": budget,
        "trouble": trouble,  # why the budget counts as used up, if it does; the seal is not looked at
        "words": [{"at": at, "reason": reason} for at, reason in words],
        "jobs": [_job(job, [message for message in messages if message.job == job]) for job in jobs],
        "last_message": messages[-1]._asdict() if messages else None,
        "refusals": refusals,
    }


def _job(job: str, messages: list[Kept]) -> dict[str, Any]:
    return {
        "job": job,
        "messages": len(messages),
        "accepted": sum(message.status == "accepted" for message in messages),
        "last_round": messages[-1].round,
        "rounds": [message.round for message in messages],
    }
