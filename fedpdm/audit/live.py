"""Audit a job on real rows, in the one run that it has.

Before the job `toss` chooses some of a client's rows as canaries. For each it tosses a coin, and if it shows tails it leaves
the row out of the file that the node will read. After the job `audit_job` looks at the messages that left the node, and guesses
the coins. A canary is one of the client's own rows, so this works behind every schema and map, and costs half of the canaries
in training.

Formal guarantee: that of Theorem O (docs/audit.md) for the claim "all messages of the job are mu-GDP for adding or removing one
row", mu as on the node's ledger. Assumptions: the coins are fair, independent and known to nobody who has a say in the job; the
guesses are made from the messages, the requests and all rows, not from the coins.
"""

import hashlib
import json
import secrets
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedpdm.audit.one_run import guess
from fedpdm.audit.verdict import AuditResult, Claim, judge_one_run
from fedpdm.engines.flower.client.evidence import Exchange, exchanges
from fedpdm.engines.flower.client.files import without_rows
from fedpdm.engines.flower.client.held_jobs import held_job
from fedpdm.engines.flower.client.node_data import ClientExamples, NodeSource, read_file_rows
from fedpdm.engines.flower.client.work import Work
from fedpdm.engines.flower.job import Job
from fedpdm.engines.flower.protocol import Request
from fedpdm.errors import ConfigError, DataError, UserError
from fedpdm.privacy.accounting import compose_gdp, gdp_epsilon
from fedpdm.privacy.ledger import Ledger, Spend
from fedpdm.runs.folder import atomic_write

__all__ = ["Tossed", "toss", "read_coins", "audit_job"]


class Tossed(NamedTuple):
    """Which rows are canaries, and which of them are there. As private as the rows."""

    path: Path  # the file with all rows
    checksum: str
    rows: list[int]  # places of the canaries, counted from 0
    there: list[int]  # 1 or 0 for each of them


def toss(path: Path, out: Path, coins: Path, count: int) -> Tossed:
    """Choose canaries among the rows of a file, toss their coins, and write the file without those that show tails.

    Parameters
    ----------
    path, out
        The client's rows (CSV, Parquet, NPZ or LibSVM), and the file for the node, in the same format.
    coins
        A file for the canaries and their coins.
    count
        The number of canaries.

    Returns
    -------
    Tossed
        The canaries and their coins.
    """
    if out.suffix != path.suffix or out.exists() or coins.exists():
        raise ConfigError(
            f"Expected new files, the rows in a {path.suffix} file: {out} or {coins} is there, or has another ending."
        )
    rows = without_rows(path, set())[0]
    if not 2 <= count <= rows:
        raise ConfigError(f"Expected from 2 to {rows} canaries, as many as there are rows, not {count}.")
    chosen = sorted(secrets.SystemRandom().sample(range(rows), count))
    there = [secrets.randbelow(2) for _ in chosen]
    _, content = without_rows(path, {row for row, coin in zip(chosen, there, strict=True) if not coin})
    tossed = Tossed(path.absolute(), _checksum(path), chosen, there)
    for place, data in ((coins, json.dumps(tossed._asdict() | {"path": str(tossed.path)}).encode()), (out, content)):
        place.touch(0o600)
        atomic_write(place, data)
        place.chmod(0o600)
    return tossed


def read_coins(path: Path) -> Tossed:
    """Read the file of coins that `toss` wrote.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Tossed
        The canaries and their coins.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Tossed(Path(values["path"]), *(values[name] for name in Tossed._fields[1:]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no file of coins ({error}): `fedpdm privacy canaries` makes one.") from None


def audit_job(state_dir: Path, digest: str, tossed: Tossed, confidence: float = 0.95) -> AuditResult:
    """Guess the coins of a job from its messages, and compare with what the node's ledger says that they cost.

    Parameters
    ----------
    state_dir
        The node's folder; its policy has kept the messages (`keep_messages` under `[audit]`).
    digest
        The job.
    tossed
        The coins, which nothing but the verdict looks at.
    confidence
        Of the lower bounds.

    Returns
    -------
    AuditResult
        The bounds and the verdict.
    """
    job, seen = held_job(state_dir, digest), exchanges(state_dir, digest)
    if job is None or not seen:
        raise UserError(
            f"{state_dir} has no messages of job {digest[:12]}: let the policy say keep_messages = true under [audit], before "
            "the job runs."
        )
    if job.noise != "secure" or job.setup[1] is None or job.config.local.batch_size or job.setup[0].links.uplink < 1:
        raise ConfigError("An audit of a job needs secure noise, all rows in every step, and whole messages.")
    if _checksum(tossed.path) != tossed.checksum:
        raise DataError(f"{tossed.path} is not the file that the coins were tossed for: without it nothing can be said.")
    with Ledger(state_dir / "ledger.sqlite") as ledger:
        spends = [row for row in ledger.rows() if row.job == digest]
    scores = _scores(job, tossed, seen, {row.round: row.sigma for row in spends})
    result = judge_one_run(guess(scores, np.array(tossed.there)), _claim(job, spends), confidence)
    return result._replace(attack="live", sentence=f"Job {digest[:12]} on real rows: {result.sentence}")


def _claim(job: Job, spends: list[Spend]) -> Claim:
    delta = job.config.privacy.delta
    mu = compose_gdp(row.sigma / row.sensitivity for row in spends)
    return Claim("sound", gdp_epsilon(mu, delta), delta, "add-remove", tuple(row.round for row in spends), mu)


def _scores(job: Job, tossed: Tossed, seen: list[Exchange], sigmas: dict[int, float]) -> np.ndarray:
    """How much each canary looks as if it was there: the messages along the move that it would make, over the noise.

    The mean of the data sets that the coins allow is subtracted: all other rows, and half of what every canary does.
    """
    own = read_file_rows(NodeSource(0, tossed.path, None, None), job)
    if int(own.beyond):
        raise DataError(f"{tossed.path} has more rows than the job's {job.slots} slots: it cannot be computed what was sent.")
    canaries = np.array(tossed.rows)
    scores = np.zeros(len(canaries))
    for exchange in seen:
        if exchange.round not in sigmas:
            continue
        work = Work(job, Request("train", job.digest, exchange.round, 0, "", exchange.request, exchange.standard))
        base = _message(work, _without(own, canaries), exchange)
        moves = np.stack([_message(work, _without(own, np.delete(canaries, j)), exchange) - base for j in range(len(canaries))])
        told = work.read(exchange.answer) - base - moves.sum(axis=0) / 2
        scores += moves @ told / sigmas[exchange.round] ** 2
    return scores


def _message(work: Work, own: ClientExamples, exchange: Exchange) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(work.quiet(own, exchange.state).message)]).astype(float)


def _without(own: ClientExamples, rows: np.ndarray) -> ClientExamples:
    features, weights = own.features.copy(), own.weights.copy()
    features[rows], weights[rows] = 0.0, 0.0
    return own._replace(features=features, weights=weights)


def _checksum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"The file {path} cannot be read: {error.strerror}.") from None
