"""The intervals of a finished run: computed once at its end, kept beside the model."""

from typing import Any, NamedTuple

import numpy as np

from fedpdm.config import Config
from fedpdm.data.federation import Federation
from fedpdm.data.prepare import radius_of
from fedpdm.data.standard import Standard
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.errors import ConfigError
from fedpdm.privacy.interval_release import release_sums
from fedpdm.problem.inference import Intervals, contrast, exact_intervals, from_sums
from fedpdm.setup.build import loss_factory

__all__ = ["Found", "intervals_of"]

NOISED_MIXED = 0.01  # share of a coefficient in directions that noise hides beyond which it has no interval
EXACT = (
    "Sandwich errors over the rows (HC1), Student's t. They treat rows as independent, and the columns that a penalty left as "
    "known beforehand; shrinkage is taken off."
)
NOISED = (
    "From one noised release of every client's gradient and curvature at the trained model: one Newton step, errors from the "
    "spread between {clients} clients, Student's t. They hold sampling error, differences between clients and the noise of "
    "that release, for rows and residuals as they are cut."
)


class Found(NamedTuple):
    """Intervals of a run.

    Attributes
    ----------
    arrays : dict of ndarray
        "estimate" and "error" [features], on the features that the model is kept for; NaN where there is none.
    about : dict
        "freedom" and "method", or "reason" why there are none.
    """

    arrays: dict[str, np.ndarray]
    about: dict[str, Any]


def intervals_of(config: Config, simulation: Simulation) -> Found | None:
    """The intervals of the model that a run releases; None if the settings do not ask for them.

    Parameters
    ----------
    config : Config
        The settings, resolved.
    simulation : Simulation
        At its end.

    Returns
    -------
    Found or None
        The intervals, or the reason why there are none.
    """
    if not config.metrics.intervals:
        return None
    federation = simulation.federation
    model = simulation.averaged_model if config.metrics.released == "averaged" else simulation.model
    try:
        found = _noised(config, simulation, model) if simulation.plan else _exact(config, federation, simulation.shares, model)
    except ConfigError as error:
        return Found({}, {"reason": str(error)})
    if federation.standard is not None:
        found = folded(found, federation.standard)
    method = NOISED.format(clients=federation.clients) if simulation.plan else EXACT
    return Found({"estimate": found.estimate, "error": found.errors}, {"freedom": found.freedom, "method": method})


def _rows(federation: Federation) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(federation.features[i, :size], federation.labels[i, :size]) for i, size in enumerate(federation.sizes)]


def _exact(config: Config, federation: Federation, shares: np.ndarray | None, model: np.ndarray) -> Intervals:
    if config.privacy.mechanism != "none":
        raise ConfigError(f'There are no intervals with privacy.mechanism="{config.privacy.mechanism}": use "none" or "sound".')
    if federation.weights is not None and federation.kind != "time":
        raise ConfigError("There are no intervals yet where rows have weights, as with a unit column.")
    if config.problem.loss == "logistic":
        raise ConfigError("The logistic loss of the paper is no likelihood of two classes: use problem.loss=softmax.")
    rows = _rows(federation)
    parts = list(zip(federation.slots.tolist(), rows, strict=True))
    each = np.full(federation.clients, 1 / federation.clients) if shares is None else np.asarray(shares, np.float64)
    weights = np.concatenate([np.full(len(labels), each[i] / slots) for i, (slots, (_, labels)) in enumerate(parts)])
    features, labels = (np.concatenate(part) for part in zip(*rows, strict=True))
    loss = loss_factory(config)()
    return exact_intervals(loss, model, features, labels, weights / weights.sum())


def _noised(config: Config, simulation: Simulation, model: np.ndarray) -> Intervals:
    federation, plan, shares = simulation.federation, simulation.plan, simulation.shares
    assert plan is not None
    counts = federation.weights
    sums = release_sums(
        simulation.setup.problem.loss,
        model,
        _rows(federation),
        federation.slots,
        np.ones(federation.clients) if shares is None else shares,
        radius_of(config) or 1.0,
        plan.interval_multiplier,
        config.seed,
        None if counts is None else [counts[i, :size].astype(float) for i, size in enumerate(federation.sizes)],
    )
    return from_sums(contrast(model), sums, NOISED_MIXED)


def folded(found: Intervals, standard: Standard) -> Intervals:
    """The intervals on features as they were before they were standardised; the bias takes up their centres."""
    back = standard.fold(np.eye(len(found.estimate), dtype=np.float32)).astype(np.float64)
    without = np.isnan(found.errors)
    estimate = np.nan_to_num(found.estimate) @ back
    covariance = back.T @ np.nan_to_num(found.covariance) @ back
    untold = np.isnan(found.estimate)
    if standard.bias and untold.any():
        untold[-1] = without[-1] = True
    covariance[without] = covariance[:, without] = np.nan
    return Intervals(np.where(untold, np.nan, estimate), covariance, found.freedom)
