"""Attack what training runs, with the settings of a run; `fedpdm.audit.verdict` turns scores into bounds."""

import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedpdm.algorithms.local import Examples
from fedpdm.audit.attacks import ATTACKS, attack_client
from fedpdm.audit.one_run import one_run
from fedpdm.audit.small import small_config, small_federation
from fedpdm.audit.verdict import AuditResult, Claim, judge, judge_one_run
from fedpdm.config import Config
from fedpdm.data import Federation
from fedpdm.data.prepare import radius_of
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import Relation, effective_multiplier
from fedpdm.privacy.plan import Plan
from fedpdm.rounds import Setup
from fedpdm.setup.build import build_setup
from fedpdm.setup.directions import federate
from fedpdm.setup.resolve import resolve

__all__ = ["ATTACKS", "audit", "audit_federation", "audit_config", "audit_one_run", "claim_of"]
__all__ += ["small_config", "small_federation"]


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
