"""The status of a client from its folder, for the operator of the node."""

from pathlib import Path
from typing import Any

from fedpdm.engines.flower.client.books import BudgetClosed, open_ledger
from fedpdm.engines.flower.client.client import SUFFIXES
from fedpdm.engines.flower.client.held_jobs import held_digests, held_job
from fedpdm.engines.flower.client.node_data import beyond_slots
from fedpdm.engines.flower.client.store import Kept, open_store
from fedpdm.engines.flower.cost import job_epsilon
from fedpdm.engines.flower.job import Job
from fedpdm.errors import UserError
from fedpdm.privacy.accounting import compose_gdp, effective_multiplier, gdp_epsilon
from fedpdm.privacy.ledger import Spend

__all__ = ["client_status"]

COUNTED = ("introductions", "requests", "refusals", "jobs", "bytes")


def client_status(folder: Path) -> dict[str, Any]:
    """Return budget, jobs with their spending, last message, the day's counts and refusals, as plain values.

    Parameters
    ----------
    folder : Path
        The state folder.

    Returns
    -------
    dict
        Values for JSON.
    """
    with open_store(folder, create=False) as store:
        messages = store.messages()
        refusals = [dict(zip(("at", "job", "round", "name", "reason"), row, strict=True)) for row in store.refusals()]
        today = {what: store.admission.today(what) for what in COUNTED}
        budget, spends, words, trouble = None, [], [], None
        if (folder / "ledger.sqlite").exists() or store.heads():  # to look makes no file
            try:
                with open_ledger(folder, store) as ledger:
                    budget, spends, words = next(iter(ledger.accounts()), None), ledger.rows(), ledger.words()
            except BudgetClosed as error:
                trouble = str(error)
    named = [*held_digests(folder), *(_plain(message.job) for message in messages)]
    return {
        "budget": budget,
        "trouble": trouble,  # why the budget counts as used up, if it does; the seal is not compared
        "words": [{"at": at, "reason": reason} for at, reason in words],
        "jobs": [
            _job(folder, job, messages, spends, budget) | ({"epsilon_spent": None} if trouble else {})  # nobody knows it
            for job in dict.fromkeys(named)
        ],
        "last_message": messages[-1]._asdict() if messages else None,
        "today": today,
        "refusals": refusals,
    }


def _job(folder: Path, job: str, messages: list[Kept], spends: list[Spend], budget: dict[str, Any] | None) -> dict[str, Any]:
    own = [message for message in messages if message.job == job]
    paid = [spend for spend in spends if _plain(spend.job) == job]
    spent = 0.0
    if paid and budget is not None:
        multipliers = (effective_multiplier(spend.sigma / spend.sensitivity, budget["relation"]) for spend in paid)
        spent = gdp_epsilon(compose_gdp(multipliers), budget["delta"])
    held = _held(folder, job)
    return {
        "job": job,
        "approved": job in held_digests(folder),
        "algorithm": held.config.algorithm.name if held else None,
        "rows_beyond_slots": beyond_slots(folder, held) if held else 0,
        "epsilon_most": job_epsilon(held) if held else None,
        "epsilon_spent": spent,
        "releases": len(paid),
        "messages": len(own),
        "evaluations": sum(message.job == job + SUFFIXES["evaluate"] for message in messages),
        "accepted": sum(message.status == "accepted" for message in own),
        "last_round": own[-1].round if own else None,
        "rounds": [message.round for message in own],
    }


def _plain(name: str) -> str:
    """The job's own digest."""
    return name.partition(":")[0]


def _held(folder: Path, job: str) -> Job | None:
    """The job, if it is held and whole."""
    try:
        return held_job(folder, job)
    except UserError:
        return None
