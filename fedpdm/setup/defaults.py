"""Settings of a private run from public sizes and the budget alone: the rule of docs/defaults.md."""

import math
from typing import Any, NamedTuple

import numpy as np

from fedpdm.config import Config
from fedpdm.data.federation import Federation
from fedpdm.privacy.accounting import gdp_mu
from fedpdm.problem import Loss, softmax
from fedpdm.setup.budget import after_schema
from fedpdm.setup.build import loss_factory
from fedpdm.setup.shares import precisions

__all__ = ["Sizes", "by_rule", "signal", "rule", "sizes_of", "verdict", "warning"]

# Chosen on made-up tables: docs/defaults.md
TRAVEL_PER_SIGNAL, LEAST_TRAVEL, MOST_TRAVEL = 10.0, 100.0, 1000.0
STEP, LEAST_ROUNDS, MOST_ROUNDS = 4.0, 25, 250
CLIP = 0.7  # of the loss's own bound
NUMBER_CLIP = 0.25  # of the label's range, for losses whose slope is the residual: few residuals are larger
ENOUGH, TOO_LITTLE = 10.0, 3.0  # signals at which made-up tables lose little, and much, of their AUC; few were below 3


class Sizes(NamedTuple):
    """The public facts about a table: rows of every client, features (the bias included), and classes."""

    rows: np.ndarray
    features: int
    classes: int = 2


def sizes_of(federation: Federation) -> Sizes:
    """Return the public sizes of a federation.

    Parameters
    ----------
    federation : Federation
        The clients' rows.

    Returns
    -------
    Sizes
        The sizes.
    """
    return Sizes(federation.slots.astype(float), federation.features.shape[2], federation.classes)


def signal(sizes: Sizes, epsilon: float, delta: float, relation: str = "add-remove") -> float:
    r"""Return the signal $S = \mu / (m \sqrt{\sum_i w_i^2/n_i^2})$: the information of the rows relative to the noise.

    $\mu$ is that of the whole budget, m the number of features, $w_i$ are the clients' shares, $n_i$ their rows. For one client
    it is $\mu n/m$.

    Parameters
    ----------
    sizes : Sizes
        The public sizes.
    epsilon, delta, relation
        The budget.

    Returns
    -------
    float
        S.
    """
    mu = gdp_mu(epsilon, delta) / (2 if relation == "replace-one" else 1)
    weights = precisions(sizes.rows, sizes.classes * sizes.features, mu)
    weights = weights / weights.sum()
    return mu / (math.sqrt(float((weights**2 / sizes.rows**2).sum())) * sizes.features)


def rule(found: float, loss: Loss | None = None) -> dict[str, dict[str, Any]]:
    """Return the settings for a signal S: the length of all steps together, the number of rounds, and the clip.

    Parameters
    ----------
    found : float
        S.
    loss : Loss, optional
        The loss, with its natural bound; default: softmax. Steps are shorter for a loss with more curvature.

    Returns
    -------
    dict
        Values by section and key.
    """
    loss = loss or softmax()
    travel = min(max(TRAVEL_PER_SIGNAL * found, LEAST_TRAVEL), MOST_TRAVEL)
    rounds = min(max(math.ceil(travel / STEP), LEAST_ROUNDS), MOST_ROUNDS)
    step = float(f"{travel / rounds * min(1.0, 0.5 / loss.smoothness(1.0)):.4g}")
    return {
        "algorithm": {"rho": 1 / step},
        "local": {"steps": 1, "step_size": step / 2},  # then kappa is 1/2, and a round is a step of 1/rho
        "rounds": {"total": rounds},
        "privacy": {"mode": "linearised", "clip": CLIP * loss.gradient_bound(1.0)},
        "metrics": {"released": "averaged"},
    }


def by_rule(config: Config, federation: Federation) -> Config:
    """Fill in settings by the rule, if privacy.defaults is "rule". Settings that the user gave stay.

    Parameters
    ----------
    config, federation
        The settings and the clients' rows.

    Returns
    -------
    Config
        The settings.
    """
    p = config.privacy
    if p.defaults != "rule":
        return config
    left = after_schema(config, federation.schema.cost if federation.schema else None).privacy
    assert left.epsilon is not None
    found = signal(sizes_of(federation), left.epsilon, left.delta, left.relation)
    sections = {}
    for name, values in rule(found, _bounded_loss(config)).items():
        section = getattr(config, name)
        new = {key: value for key, value in values.items() if key not in section.model_fields_set}
        sections[name] = section.model_copy(update=new)
    return config.model_copy(update=sections)


def _bounded_loss(config: Config) -> Loss:
    """The loss with its natural bound; a residual that nothing bounds is cut so that the rule's clip is `NUMBER_CLIP`."""
    make = loss_factory(config)
    return make(clip=NUMBER_CLIP / CLIP) if math.isinf(make().gradient_bound(1.0)) else make(clip=1.0)


def warning(config: Config, federation: Federation) -> str | None:
    """Return a warning before a run whose budget is too small for its table, if the rule made its settings.

    Parameters
    ----------
    config, federation
        The settings and the clients' rows.

    Returns
    -------
    str or None
        The warning.
    """
    p = config.privacy
    if p.defaults != "rule" or p.epsilon is None:
        return None
    return verdict(sizes_of(federation), p.epsilon, p.delta, p.relation)


def verdict(sizes: Sizes, epsilon: float, delta: float, relation: str = "add-remove") -> str | None:
    """Return a sentence about a budget that is too small for these sizes, with one that would be enough.

    Parameters
    ----------
    sizes, epsilon, delta, relation
        As in `signal`.

    Returns
    -------
    str or None
        The sentence; None if the budget is large enough.
    """
    found = signal(sizes, epsilon, delta, relation)
    if found >= ENOUGH:
        return None
    enough = epsilon
    while signal(sizes, enough, delta, relation) < ENOUGH and enough < 1000:
        enough *= 1.1
    more = math.ceil(ENOUGH / found * float(sizes.rows.sum()))
    how = (
        "far worse than without noise, and may not beat the majority class"
        if found < TOO_LITTLE
        else "clearly worse than without noise"
    )
    fewer = max(1, int(sizes.features * found / ENOUGH))
    return (
        f"The budget is small for this table: the signal is {found:.2g} (docs/defaults.md), and below {ENOUGH:g} a model is "
        f"{how}. Enough would be epsilon = {enough:.2g}, or about {more} rows in all, or {fewer} features instead of "
        f"{sizes.features}."
    )
