"""The intervals of a finished run: computed once at its end, kept beside the model."""

from typing import Any, NamedTuple

import numpy as np

from fedpdm.config import Config
from fedpdm.data.directions import Directions
from fedpdm.data.federation import Federation
from fedpdm.data.prepare import radius_of
from fedpdm.data.standard import Standard
from fedpdm.engines.simulation.simulation import Simulation
from fedpdm.errors import ConfigError
from fedpdm.participation import cohort_table
from fedpdm.privacy.interval_release import Bounds, bounds_of, release_sums, require_close, too_few
from fedpdm.problem.inference import CurvatureSums, Intervals, contrast, exact_intervals, from_sums
from fedpdm.problem.multinomial import multinomial_intervals
from fedpdm.setup.build import loss_factory
from fedpdm.setup.cohorts import cohort_of

__all__ = ["Found", "Public", "intervals_of", "noised_intervals"]

NOISED_MIXED = 0.01  # share of a coefficient in directions that noise hides beyond which it has no interval
EXACT = (
    "Sandwich errors over the rows (HC1), Student's t. They treat rows as independent, and the columns that a penalty left as "
    "known beforehand; shrinkage is taken off."
)
NOISED = (
    "From one noised release of every client's gradient and curvature at the trained model: one Newton step, errors from the "
    "spread between {spread}, Student's t. They hold sampling error, differences between clients and the noise of "
    "that release, for rows and residuals as they are cut."
)


NO_BASELINE = (
    "Columns that determine each other, such as all levels of a word beside the bias, never have one: give the word a baseline "
    "in the schema"
)


class Found(NamedTuple):
    """Intervals of a run.

    Attributes
    ----------
    arrays : dict of ndarray
        "estimate" and "error" [features], on the features that the model is kept for; NaN where there is none.
    about : dict
        "freedom" and "method", and "missing" if some coefficients have none; or "reason" why there are none.
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
    if isinstance(federation.standard, Directions):
        return Found({}, {"reason": "The model is trained on directions of a basis, whose coefficients have no intervals."})
    model = simulation.averaged_model if config.metrics.released == "averaged" else simulation.model
    try:
        if simulation.plan:
            loss, cohorts = simulation.setup.problem.loss, _cohorts(config, federation)
            bounds, sums = bounds_of(loss, radius_of(config) or 1.0), _noised(config, simulation, model, cohorts)
            spread = f"{federation.clients} clients" if cohorts is None else f"{len(cohorts)} cohorts"
            public = Public(bounds, spread, float(np.median(federation.slots)), loss.target, simulation.plan.unit)
            return noised_intervals(model, sums, public, federation.standard)
        found = _exact(config, federation, simulation.shares, model)
    except ConfigError as error:
        return Found({}, {"reason": str(error)})
    return _kept(found, federation.standard, EXACT)


class Public(NamedTuple):
    """What is public about a release: a row's bounds, between whom the spread is, a client's units, and the kind of label."""

    bounds: Bounds
    spread: str
    slots: float
    target: str
    unit: str | None = None  # the column that names persons, if the slots count them


def noised_intervals(model: np.ndarray, sums: CurvatureSums, public: Public, standard: Standard | None) -> Found:
    """The intervals that follow from released sums: one Newton step from the model, if that is near enough.

    Parameters
    ----------
    model : ndarray
        [m, p] at which the sums were released.
    sums : CurvatureSums
        What the clients released.
    public : Public
        What is public about them.
    standard : Standard or None
        By which features were centred and scaled.

    Returns
    -------
    Found
        The intervals.
    """
    try:
        require_close(sums, public.bounds)
    except ConfigError as error:
        return Found({}, {"reason": str(error)})
    found = _kept(from_sums(contrast(model), sums, NOISED_MIXED), standard, NOISED.format(spread=public.spread))
    missing = np.isnan(found.arrays["estimate"])
    if missing.any():
        found.about["missing"] = _why_missing(too_few(sums, NOISED_MIXED)[missing], len(missing), public)
    return found


def _why_missing(times: np.ndarray, coefficients: int, public: Public) -> str:
    """Why some coefficients have no interval, how many units would be enough, and the ways out."""
    units = "subjects" if public.target == "time" else f"{public.unit}s" if public.unit else "rows"
    known = times[np.isfinite(times) & (times > 1)]
    enough = f"more than {_about(2 * public.slots)}, the noise hides how many"
    if len(known):
        enough = f"about {_about(known.max() * public.slots)} for {len(known)} of them"
    return (
        f"{len(times)} of {coefficients} coefficients have no interval: noise hides the curvature that tells them. Clients "
        f"have {public.slots:,.0f} {units} (median), and it takes {enough}. Ways out: more {units}, more clients, a larger "
        f"privacy.epsilon or privacy.interval_share{', fewer bands' if public.target == 'time' else ''}. {NO_BASELINE}."
    )


def _about(count: float) -> str:
    return f"{float(f'{count:.2g}'):,.0f}"


def _kept(found: Intervals, standard: Standard | None, method: str) -> Found:
    found = folded(found, standard) if standard is not None else found
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
    if len(model) > 2:
        return multinomial_intervals(model, features, labels, weights / weights.sum())
    loss = loss_factory(config)()
    return exact_intervals(loss, model, features, labels, weights / weights.sum())


def _cohorts(config: Config, federation: Federation) -> list[np.ndarray] | None:
    """The clients of every cohort; None if the server sees every client's message."""
    if config.privacy.trust != "cohorts":
        return None
    table, real = cohort_table(federation.clients, cohort_of(config, federation.clients).members, config.seed)
    return [members[there] for members, there in zip(table, real, strict=True)]


def _noised(config: Config, simulation: Simulation, model: np.ndarray, cohorts: list[np.ndarray] | None) -> CurvatureSums:
    federation, plan, shares = simulation.federation, simulation.plan, simulation.shares
    assert plan is not None
    counts = federation.weights
    shared = cohorts is not None and config.cohorts.budget == "sum"
    return release_sums(
        simulation.setup.problem.loss,
        model,
        _rows(federation),
        federation.slots,
        np.ones(federation.clients) if shares is None else shares,
        radius_of(config) or 1.0,
        plan.interval_multiplier,
        config.seed,
        None if counts is None else [counts[i, :size].astype(float) for i, size in enumerate(federation.sizes)],
        cohorts,
        cohort_of(config, federation.clients).honest if shared else 1,
    )


def folded(found: Intervals, standard: Standard) -> Intervals:
    """The intervals on features as they were before they were standardised; the bias takes up their centres.

    They are about the rows as training saw them, so weights are not shrunken here.
    """
    p = len(standard.scale)
    classes = len(found.estimate) // p  # one block for every class after the first, or one for a number
    back = np.kron(np.eye(classes), standard._replace(shrink=1.0).fold(np.eye(p, dtype=np.float32)).astype(np.float64))
    without = np.isnan(found.errors)
    estimate = np.nan_to_num(found.estimate) @ back
    covariance = back.T @ np.nan_to_num(found.covariance) @ back
    untold = np.isnan(found.estimate)
    for last in range(p - 1, len(untold), p):
        if standard.bias and untold[last - p + 1 : last + 1].any():
            untold[last] = without[last] = True
    covariance[without] = covariance[:, without] = np.nan
    return Intervals(np.where(untold, np.nan, estimate), covariance, found.freedom)
