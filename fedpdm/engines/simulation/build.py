"""The simulator of a config."""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from fedpdm.config import Config
from fedpdm.data import Federation
from fedpdm.data.prepare import radius_of
from fedpdm.data.ragged import Ragged, real_rows
from fedpdm.engines.simulation.simulation import ReleaseLedger, Schedule, Simulation
from fedpdm.errors import ConfigError
from fedpdm.hostile.attacks import ON_ROWS, Attack, attackers_of, poisoned
from fedpdm.privacy.band import Band
from fedpdm.privacy.plan import Plan
from fedpdm.problem.penalties import Penalty
from fedpdm.rounds import Setup
from fedpdm.setup.band import band_of, no_band_because
from fedpdm.setup.build import LossFactory, build_setup
from fedpdm.setup.resolve import resolve
from fedpdm.setup.shares import shares_of
from fedpdm.setup.standardise import standardised

__all__ = ["LedgerFactory", "build_simulation", "resolved_simulation"]

# makes the ledger of a simulation under the sound mechanism
LedgerFactory = Callable[[Plan, Setup, Federation], ReleaseLedger]


def build_simulation(
    config: Config, federation: Federation, loss: LossFactory | None = None, penalty: Penalty | None = None
) -> Simulation:
    """Build the simulator of these settings on this federation, without a ledger.

    Parameters
    ----------
    config : Config
        The settings.
    federation : Federation
        The clients' examples.
    loss, penalty : optional
        As in `build_setup`.

    Returns
    -------
    Simulation
        The simulator, ready to run.
    """
    return resolved_simulation(resolve(config, federation), federation, loss, penalty)


def resolved_simulation(
    config: Config,
    federation: Federation,
    loss: LossFactory | None = None,
    penalty: Penalty | None = None,
    ledger: LedgerFactory | None = None,
) -> Simulation:
    """Build the simulator of resolved settings (`fedpdm.setup.resolve`).

    Parameters
    ----------
    config, federation, loss, penalty
        As in `build_simulation`.
    ledger : callable, optional
        Makes the ledger of a simulation under the sound mechanism.

    Returns
    -------
    Simulation
        The simulator, ready to run.
    """
    r = config.rounds
    if config.metrics.threshold is not None and federation.classes != 2:
        raise ConfigError(f"metrics.threshold is for two classes, but {federation.name} has {federation.classes}: remove it.")
    federation = standardised(config, federation)
    setup, plan = build_setup(config, federation, loss, penalty)
    attack = _attack(config, federation)
    if attack or config.cohorts.compare:
        band, why = _band(config, setup, plan, federation)
        setup = setup._replace(band=band)
        if attack:
            federation, attack = poisoned(attack, federation), attack._replace(unchecked=why)
    if plan and math.isfinite(setup.problem.loss.smoothness(1.0)):  # the bound depends on the features' norms
        federation = within_radius(federation, radius_of(config) or 1.0)
    schedule = Schedule(
        rounds=r.total,
        participants=r.participants,
        seed=config.seed,
        all_first=r.all_first,
        sampling=r.sampling,
        cap=plan.participations if plan else 0,
        cohort_size=setup.privacy.sums.cohort.members if setup.privacy.sums else 0,
        fixed_cohorts=config.cohorts.members == "fixed",
        tolerance=r.tolerance,
        newton=config.algorithm.newton and attack is None,
        attack=attack,
        initial_scale=r.initial_scale,
        **config.metrics.model_dump(include={"evaluate_every", "diagnose_every", "tail"}),
    )
    made = ledger(plan, setup, federation) if ledger and plan else None
    shares = shares_of(config, federation.slots, federation.classes * federation.features.shape[2], plan)
    return Simulation(setup, federation, schedule, plan, shares, ledger=made)


def _attack(config: Config, federation: Federation) -> Attack | None:
    a = config.attack
    if a.kind == "none":
        return None
    if a.clients > federation.clients:
        raise ConfigError(f"attack.clients={a.clients} is more than the {federation.clients} clients: lower it.")
    if a.kind in ON_ROWS and federation.numeric:
        raise ConfigError(f"attack.kind={a.kind} changes classes, but the label is a number: choose another attack.")
    return Attack(a.kind, attackers_of(a.clients, federation.clients, config.seed), a.scale, federation.clients)


def _band(config: Config, setup: Setup, plan: Plan | None, federation: Federation) -> tuple[Band | None, str | None]:
    """What the server of a simulation holds messages against, or why nothing; the largest norm stands for a public radius."""
    rows = real_rows(federation.features, federation.sizes)
    radius = radius_of(config) or (1.0 if plan else float(np.linalg.norm(rows, axis=1).max()))
    why = no_band_because(setup, plan, radius) if config.attack.checks else "attack.checks=false"
    if why and config.cohorts.compare:
        raise ConfigError(f"cohorts.compare=true needs the limits of an honest sum, and there are none: {why}.")
    if why and config.attack.kind == "strongest":
        raise ConfigError(f"attack.kind=strongest stays within the limits of the check of messages, and there is none: {why}.")
    found = None if why else band_of(setup, plan, radius)
    return (found._replace(compared=config.cohorts.compare) if found else None), why


def within_radius(federation: Federation, radius: float) -> Federation:
    """Refuse features beyond the radius: the sensitivity bounds would not hold for them.

    Features that are loaded later are checked at that time.
    """
    if isinstance(federation.features, Ragged):
        _Watched(federation.features.rows[None], radius)[slice(None)]
        return federation
    watched = _Watched(federation.features, radius)
    if type(federation.features) is np.ndarray:
        watched[slice(None)]
        return federation
    return federation._replace(features=cast(np.ndarray, watched))


class _Watched:
    """Features of clients that pass only if they are within the radius."""

    def __init__(self, features: np.ndarray, radius: float) -> None:
        self.shape, self._features, self._radius = features.shape, features, radius

    def __getitem__(self, clients: Any) -> np.ndarray:
        found = self._features[clients]
        largest = float(np.sqrt((found.astype(np.float64) ** 2).sum(axis=2).max()))
        if not largest <= self._radius * (1 + 1e-6):
            raise ConfigError(
                f"An example's features have norm {largest:.6g}, above the radius {self._radius:g} that the privacy guarantee "
                "assumes: cut them with fedpdm.data.clip_norms first, or raise data.radius."
            )
        return found
