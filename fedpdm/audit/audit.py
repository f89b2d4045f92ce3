r"""Test a mechanism's promise: lower bounds on epsilon from attacks on the functions that training runs.

A test that tells two neighbouring data sets apart with false positive rate a and false negative rate b refutes
$(\epsilon, \delta)$-DP unless $a + e^\epsilon b \ge 1 - \delta$ and $b + e^\epsilon a \ge 1 - \delta$; and it refutes
$\mu$-GDP unless $\mu \ge \Phi^{-1}(1 - a) - \Phi^{-1}(b)$. Here a and b are upper Clopper-Pearson bounds from the second
half of the runs; the statistic and its threshold come from the first half. So a bound holds with the stated confidence for
any mechanism. It says "at least", never "at most", and cannot exceed about ln(runs/8).
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.special import betaincinv, ndtri

from fedpdm.algorithms.local import Examples
from fedpdm.audit.attacks import ATTACKS, Scores, attack_client
from fedpdm.audit.one_run import Guessed, least_epsilon, least_mu, one_run
from fedpdm.audit.small import small_config, small_federation
from fedpdm.config import Config
from fedpdm.data import Federation
from fedpdm.data.prepare import radius_of
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import Relation, effective_multiplier, gdp_epsilon
from fedpdm.privacy.plan import Plan
from fedpdm.rounds import Setup
from fedpdm.setup.build import build_setup
from fedpdm.setup.directions import federate
from fedpdm.setup.resolve import resolve

__all__ = ["ATTACKS", "Claim", "AuditResult", "audit", "audit_federation", "audit_config", "claim_of", "judge", "error_rates"]
__all__ += ["audit_one_run", "judge_one_run", "to_json", "small_config", "small_federation"]

CANDIDATES = 400  # thresholds that are tried


class Claim(NamedTuple):
    """A mechanism's promise to one client."""

    mechanism: str
    epsilon: float  # for all rounds together
    delta: float
    relation: Relation
    rounds: tuple[int, ...]  # in which the client takes part
    mu: float | None = None  # the sound mechanism promises mu-GDP, which is more than (epsilon, delta)


class AuditResult(NamedTuple):
    """The result of an attack.

    Attributes
    ----------
    lower_bound
        Epsilon is at least this at the claim's delta, with `confidence`, without an assumption about the mechanism.
    gdp_lower_bound
        If the claim is mu-GDP: the epsilon at delta of the smallest mu that the attack leaves possible, else None.
    breached
        Whether one of the two is above the claim.
    theory_shift
        The largest shift of the score, in standard deviations, that the mechanism's sensitivity allows: mu of the claim; for
        the paper's mechanism, the composition of its reported sensitivities. None for scores that are not sums of messages.
    measured_shift
        The measured shift of the best linear statistic, in its standard deviations.
    scores_with, scores_without
        Scores of the second half of the runs, which give the bounds.
    """

    mechanism: str
    attack: str
    claimed_epsilon: float
    claimed_mu: float | None
    delta: float
    relation: str
    participations: int
    lower_bound: float
    gdp_lower_bound: float | None
    confidence: float
    runs: int
    breached: bool
    theory_shift: float | None
    measured_shift: float | None
    scores_with: np.ndarray
    scores_without: np.ndarray
    sentence: str


def audit(
    setup: Setup,
    examples: Examples,
    classes: int,
    claim: Claim,
    *,
    attack: str,
    radius: float | None = None,
    runs: int = 10_000,
    seed: int = 0,
    confidence: float = 0.95,
) -> AuditResult:
    """Attack one client of a setup, and compare the result with the claim.

    Parameters
    ----------
    setup, examples, classes
        The setup of training (`fedpdm.setup.build.build_setup`), one client's examples, and the number of classes.
    claim
        See `Claim`; `claim_of` makes it from the settings.
    attack
        One of `ATTACKS`, see `fedpdm.audit.attacks`.
    radius
        Bound on the norm of an example's features; None: no bound, as in the paper.
    runs, seed, confidence
        Runs on each of the two data sets, the seed of everything random, the confidence of the lower bounds.

    Returns
    -------
    AuditResult
        Lower bounds and verdict.
    """
    if attack not in ATTACKS:
        raise ConfigError(f"Unknown attack {attack!r}: choose one of {', '.join(ATTACKS)}.")
    if runs < 100:
        raise ConfigError(f"Expected runs={runs} >= 100: fewer runs give no useful bound.")
    how: dict[str, Any] = {"attack": attack, "radius": radius, "runs": runs, "seed": seed}
    scores = attack_client(setup, examples, classes, relation=claim.relation, rounds=claim.rounds, **how)
    return judge(scores, claim, attack, confidence)


def judge(scores: Scores, claim: Claim, attack: str, confidence: float = 0.95) -> AuditResult:
    """Turn the scores of the runs into lower bounds and a verdict.

    Parameters
    ----------
    scores : Scores
        The result of an attack.
    claim : Claim
        The promise.
    attack : str
        The name of the attack.
    confidence : float
        Of the lower bounds.

    Returns
    -------
    AuditResult
        Lower bounds and verdict.
    """
    half = len(scores.present) // 2
    first, second = (scores.present[:half], scores.absent[:half]), (scores.present[half:], scores.absent[half:])
    # Every lower bound needs bounds on two error rates: together they fail with probability 1 - confidence at most.
    level = 1 - (1 - confidence) / (4 if claim.mu else 2)
    epsilon = max(_held_out(first, second, level, lambda a, b: _least_epsilon(a, b, claim.delta)), 0.0)
    mu = max(_held_out(first, second, level, _least_mu), 0.0) if claim.mu else None
    breached = epsilon > claim.epsilon or (mu is not None and claim.mu is not None and mu > claim.mu)
    attacked = 1 if attack == "support" else len(claim.rounds)
    promise = claim.mechanism, attack, claim.epsilon, claim.mu, claim.delta, claim.relation, attacked
    result = AuditResult(
        *promise,
        lower_bound=epsilon,
        gdp_lower_bound=None if mu is None else gdp_epsilon(mu, claim.delta),
        confidence=confidence,
        runs=2 * half,
        breached=breached,
        theory_shift=None if scores.shift is None else claim.mu or scores.face_value,
        measured_shift=scores.shift,
        scores_with=second[0],
        scores_without=second[1],
        sentence="",
    )
    return result._replace(sentence=_sentence(result))


def _sentence(r: AuditResult, how: str = "") -> str:
    """Return the attack, the claim, the finding and the verdict in one sentence."""
    how = how or f"{r.runs} runs with and without one example"
    gdp = "" if r.gdp_lower_bound is None else f" (at least {r.gdp_lower_bound:.3g} if its noise is Gaussian)"
    verdict = "the claim is refuted" if r.breached else "no breach was found"
    times = "participation" if r.participations == 1 else "participations"
    whose = "the paper's mechanism" if r.mechanism == "paper" else f"the {r.mechanism} mechanism"
    return (
        f"Attack {r.attack!r} on {whose}, {r.participations} {times}, {how}: the claim is "
        f"epsilon = {r.claimed_epsilon:.4g} at delta = {r.delta:g} ({r.relation}), the attack shows epsilon of at least "
        f"{r.lower_bound:.3g}{gdp} with {100 * r.confidence:g} % confidence: {verdict}."
    )


def _upper(errors: np.ndarray, trials: int, level: float) -> np.ndarray:
    """Return the Clopper-Pearson bound: with confidence `level` the rate is at most this."""
    return np.where(errors < trials, betaincinv(errors + 1.0, np.maximum(trials - errors, 1.0), level), 1.0)


def error_rates(pair: tuple[np.ndarray, np.ndarray], thresholds: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Bound the false positive and false negative rates of `score > threshold` from above.

    Parameters
    ----------
    pair : (ndarray, ndarray)
        Scores with and without the canary.
    thresholds : ndarray
        The thresholds.
    level : float
        Confidence of each bound.

    Returns
    -------
    ndarray, ndarray
        The bounds for every threshold.
    """
    present, absent = (np.sort(scores) for scores in pair)
    positives = len(absent) - np.searchsorted(absent, thresholds, side="right")
    negatives = np.searchsorted(present, thresholds, side="right")
    return _upper(positives, len(absent), level), _upper(negatives, len(present), level)


def _held_out(first: Any, second: Any, level: float, bound: Any) -> float:
    """Choose the threshold with the best bound on the first half, and return its bound on the second."""
    values = np.unique(np.concatenate(first))
    between = (values[1:] + values[:-1]) / 2 if len(values) > 1 else values
    ranks = np.geomspace(1, len(between), CANDIDATES // 2).astype(int)  # the tails decide about epsilon
    thresholds = between[np.unique(np.concatenate([ranks - 1, len(between) - ranks]))]
    best = thresholds[np.argmax(bound(*error_rates(first, thresholds, level)))]
    return float(bound(*error_rates(second, np.array([best]), level))[0])


def _least_epsilon(a: np.ndarray, b: np.ndarray, delta: float) -> np.ndarray:
    return np.log(np.maximum(np.maximum(1 - delta - a, 1e-300) / b, np.maximum(1 - delta - b, 1e-300) / a))


def _least_mu(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return -ndtri(a) - ndtri(b)


def claim_of(config: Config, plan: Plan | None, clients: int) -> Claim:
    """Return the promise of these settings to a client that takes part as often as planned, at evenly spaced rounds.

    The sound mechanism: its plan. The paper's: Theorem 2 for `rounds.total` rounds, in which a client takes part K/N times as
    often, in the relation of its Definition 1: add-remove.

    Parameters
    ----------
    config : Config
        The settings.
    plan : Plan or None
        The plan of the sound mechanism.
    clients : int
        N.

    Returns
    -------
    Claim
        The promise.
    """
    p, r = config.privacy, config.rounds
    if p.mechanism == "none" or p.epsilon is None:
        raise ConfigError('privacy.mechanism="none" claims nothing: set privacy.mechanism and privacy.epsilon to audit.')
    times = max(1, math.floor(r.total * r.participants / clients))
    relation: Relation = "add-remove"
    mu = None
    if plan:
        times, relation = min(plan.participations, r.total), plan.relation
        releases = plan.participations * plan.releases
        mu = math.sqrt(releases) / effective_multiplier(plan.noise_multiplier, relation)
    rounds = tuple(int(t) for t in np.arange(times) * r.total // times)
    return Claim(p.mechanism, p.epsilon, p.delta, relation, rounds, mu)


def audit_federation(
    config: Config, federation: Federation, attack: str, runs: int = 10_000, seed: int = 0, client: int = 0
) -> AuditResult:
    """Attack one client of a federation with the setup that `fedpdm run` would train with.

    Parameters
    ----------
    config, federation
        The settings and the clients' rows.
    attack, runs, seed
        As in `audit`.
    client : int
        The attacked client.

    Returns
    -------
    AuditResult
        Lower bounds and verdict.

    Examples
    --------
    >>> audit_federation(small_config("sound", "canary"), small_federation(), "canary", runs=1000).breached
    False
    """
    config = resolve(config, federation)
    setup, plan = build_setup(config, federation)
    features, labels, sizes = map(jnp.asarray, (federation.features, federation.labels, federation.sizes))
    if federation.weights is not None:
        raise ConfigError("An audit adds or removes one row, but the unit here is a person: remove data.unit_column.")
    examples, claim = Examples(features, labels, sizes, jnp.int32(client)), claim_of(config, plan, federation.clients)
    radius = radius_of(config)
    return audit(setup, examples, federation.classes, claim, attack=attack, radius=radius, runs=runs, seed=seed)


def audit_one_run(config: Config, federation: Federation, canaries: int = 200, seed: int = 0, client: int = 0) -> AuditResult:
    """Attack one client with many canaries in one run (`fedpdm.audit.one_run`); "runs" of the result counts canaries.

    Parameters
    ----------
    config, federation, client
        As in `audit_federation`. The first `canaries` examples of the client make room for the canaries.
    canaries
        At most the number of features and of examples of the client.
    seed
        Of everything random.

    Returns
    -------
    AuditResult
        Lower bounds and verdict.
    """
    setup, plan = build_setup(config, federation)
    features, labels, sizes = map(jnp.asarray, (federation.features, federation.labels, federation.sizes))
    examples, claim = Examples(features, labels, sizes, jnp.int32(client)), claim_of(config, plan, federation.clients)
    if claim.relation != "add-remove":
        raise ConfigError("Canaries of one run are there or not: audit with privacy.relation=add-remove.")
    how: dict[str, Any] = {"rounds": claim.rounds, "radius": radius_of(config), "canaries": canaries, "seed": seed}
    return judge_one_run(one_run(setup, examples, federation.classes, **how), claim)


def judge_one_run(guessed: Guessed, claim: Claim, confidence: float = 0.95) -> AuditResult:
    """Turn the guesses about one run into lower bounds and a verdict.

    Parameters
    ----------
    guessed : Guessed
        The result of `fedpdm.audit.one_run.one_run`.
    claim, confidence
        As in `judge`.

    Returns
    -------
    AuditResult
        Lower bounds and verdict.
    """
    level = (1 - confidence) / (2 if claim.mu else 1)  # the two bounds together fail with probability 1 - confidence at most
    counts = len(guessed.scores), guessed.guesses, guessed.right, level
    epsilon, mu = least_epsilon(*counts, claim.delta), least_mu(*counts) if claim.mu else None
    present, absent = guessed.scores[guessed.there == 1], guessed.scores[guessed.there == 0]
    spread = math.sqrt((present.var() + absent.var()) / 2)
    result = AuditResult(
        *(claim.mechanism, "one-run", claim.epsilon, claim.mu, claim.delta, claim.relation, len(claim.rounds)),
        lower_bound=epsilon,
        gdp_lower_bound=None if mu is None else gdp_epsilon(mu, claim.delta),
        confidence=confidence,
        runs=len(guessed.scores),
        breached=epsilon > claim.epsilon or (mu is not None and claim.mu is not None and mu > claim.mu),
        theory_shift=claim.mu,
        measured_shift=float(present.mean() - absent.mean()) / spread if spread else None,
        scores_with=present,
        scores_without=absent,
        sentence="",
    )
    return result._replace(
        sentence=_sentence(result, f"one run with {guessed.guesses} guesses about {len(guessed.scores)} rows")
    )


def audit_config(
    config: Config, attack: str, runs: int = 10_000, seed: int = 0, data_dir: Path | None = None, canaries: int = 200
) -> AuditResult:
    """Attack client 0 of the federation of these settings.

    Parameters
    ----------
    config : Config
        The settings.
    attack, runs, seed
        As in `audit`; the attack "one-run" is allowed too.
    data_dir : Path, optional
        The folder of data files.
    canaries : int
        Canaries of the attack "one-run".

    Returns
    -------
    AuditResult
        Lower bounds and verdict.
    """
    federation = federate(config, data_dir, progress=False)
    if attack == "one-run":
        return audit_one_run(config, federation, canaries, seed)
    return audit_federation(config, federation, attack, runs, seed)


def to_json(result: AuditResult) -> dict[str, Any]:
    """Return the result without its scores, in plain values.

    Parameters
    ----------
    result : AuditResult
        The result.

    Returns
    -------
    dict
        Values for JSON.
    """
    return {name: value for name, value in result._asdict().items() if not name.startswith("scores_")}
