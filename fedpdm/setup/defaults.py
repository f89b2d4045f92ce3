"""Settings of a private run from public sizes and the budget alone: the rule of docs/defaults.md."""

import math
from typing import Any, NamedTuple

import numpy as np

from fedpdm.config import Config
from fedpdm.data.features import DIRECTION
from fedpdm.data.federation import Federation
from fedpdm.data.schema import Cost
from fedpdm.privacy.accounting import gdp_mu
from fedpdm.problem import Loss, softmax
from fedpdm.setup.budget import after_schema
from fedpdm.setup.build import loss_factory
from fedpdm.setup.shares import precisions

__all__ = ["Sizes", "by_rule", "in_cohorts", "number_clip", "signal", "rule", "sizes_of", "verdict", "warning", "weighed"]

# Chosen on made-up tables: docs/defaults.md
TRAVEL_PER_SIGNAL, LEAST_TRAVEL, MOST_TRAVEL = 10.0, 100.0, 1000.0
STEP, LEAST_ROUNDS, MOST_ROUNDS = 4.0, 25, 250
# Behind a public basis, with A of `fedpdm.setup.directions`: chosen on made-up images, docs/features.md
BASED_NOISE, BASED_CLIP, MOST_BASED_TRAVEL = 0.8, 0.2, 16_000.0  # clip times travel is 0.8 A
BASED_STEP, LEAST_BASED_ROUNDS = 200.0, 20
CLIP = 0.7  # of the loss's own bound
SHRINK, SHRINK_FROM = (
    0.85,
    40.0,
)  # of weights in use, from this signal on: training cuts long rows, so weights come out too large
# Of the label's range, where the slope is the residual: this much at a signal of 50, growing with its root (docs/defaults.md)
NUMBER_CLIP, LEAST_NUMBER_CLIP, MOST_NUMBER_CLIP = 0.25, 0.12, 0.5
TIME_CLIP = 1.0  # the slope of a band with an event is near -1: a smaller clip would lower every hazard by its factor
ENOUGH, TOO_LITTLE = 6.5, 2.0  # weighed signals below which accuracy, or even the AUC, may not beat chance: docs/defaults.md
DUAL_WEIGHTS = {"fedpdm": "rho", "feddr": "rho", "afedpd": "rho", "feddyn": "alpha"}  # of algorithms whose clients have duals
RARE = 0.1  # share of one of two classes below which accuracy says little, whatever the budget
BASED_FEATURES = 4.6  # directions per class that count for the verdict, however many there are: docs/defaults.md


class Sizes(NamedTuple):
    """The public facts about a table: rows of every client, features (the bias included), and classes."""

    rows: np.ndarray
    features: int
    classes: int = 2
    based: bool = False  # whether the features are directions of a public basis, of which the first ones matter most


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
    based = any(name.startswith(DIRECTION) for name in federation.feature_names[:1])  # names may be missing
    return Sizes(federation.slots.astype(float), federation.features.shape[2], federation.classes, based)


def signal(sizes: Sizes, epsilon: float, delta: float, relation: str = "add-remove", clients_per_unit: int = 1) -> float:
    r"""Return the signal $S = \mu / (m \sqrt{\sum_i w_i^2/n_i^2})$: the information of the rows relative to the noise.

    $\mu$ is that of the whole budget, m the number of features, $w_i$ are the clients' shares, $n_i$ their rows. For one client
    it is $\mu n/m$.

    Parameters
    ----------
    sizes : Sizes
        The public sizes.
    epsilon, delta, relation
        The budget.
    clients_per_unit : int
        The most clients with rows of one person: they share the budget.

    Returns
    -------
    float
        S.
    """
    mu = gdp_mu(epsilon, delta) / (2 if relation == "replace-one" else 1) / math.sqrt(clients_per_unit)
    weights = precisions(sizes.rows, sizes.classes * sizes.features, mu)
    weights = weights / weights.sum()
    return mu / (math.sqrt(float((weights**2 / sizes.rows**2).sum())) * sizes.features)


def rule(
    found: float,
    loss: Loss | None = None,
    strength: float | None = None,
    rounds: int | None = None,
    algorithm: str = "fedpdm",
) -> dict[str, dict[str, Any]]:
    """Return the settings for a signal S: the length of all steps together, the number of rounds, and the clip.

    Parameters
    ----------
    found : float
        S.
    loss : Loss, optional
        The loss, with its natural bound; default: softmax. Steps are shorter for a loss with more curvature.
    strength : float, optional
        A of `fedpdm.setup.directions`, if the features are directions of a public basis.
    rounds : int, optional
        The number of rounds, where the user gave one: the steps have the same length together, as far as they may be longer.
    algorithm : str
        Its name. With duals, a local step of half the length and kappa = 1/2 make a round a step of 1/rho.

    Returns
    -------
    dict
        Values by section and key.
    """
    loss = loss or softmax()
    plan = _travel(found) if strength is None else _based_travel(strength)
    step = plan.travel / plan.rounds if rounds is None else min(plan.travel / rounds, plan.longest)
    step = float(f"{step * min(1.0, 0.5 / loss.smoothness(1.0)):.4g}")
    shrink = SHRINK if found >= SHRINK_FROM and loss.target == "classes" else 1.0
    weight = DUAL_WEIGHTS.get(algorithm)
    return {
        "data": {"standard_shrink": shrink},
        "algorithm": {weight: 1 / step} if weight else {},
        "local": {"steps": 1, "step_size": step / 2 if weight else step},
        "rounds": {"total": plan.rounds},
        "privacy": {"mode": "linearised", "clip": plan.clip * loss.gradient_bound(1.0)},
        "metrics": {"released": plan.released},
    }


class _Plan(NamedTuple):
    """How far all steps go together, the rounds, the longest step, the clip (of the loss's own bound), and the model."""

    travel: float
    rounds: int
    longest: float
    clip: float
    released: str


def _travel(found: float) -> _Plan:
    travel = min(max(TRAVEL_PER_SIGNAL * found, LEAST_TRAVEL), MOST_TRAVEL)
    rounds = min(max(math.ceil(travel / STEP), LEAST_ROUNDS), MOST_ROUNDS)
    return _Plan(travel, rounds, STEP, CLIP, "averaged")


def _based_travel(strength: float) -> _Plan:
    travel = min(BASED_NOISE / BASED_CLIP * strength, MOST_BASED_TRAVEL)
    rounds = max(math.ceil(travel / BASED_STEP), LEAST_BASED_ROUNDS)
    return _Plan(travel, rounds, BASED_STEP, min(BASED_NOISE * strength / travel, CLIP), "last")


def by_rule(config: Config, sizes: Sizes, cost: Cost | None = None) -> Config:
    """Fill in settings by the rule, if privacy.defaults is "rule". Settings that the user gave stay.

    Parameters
    ----------
    config, sizes
        The settings, and what is public about the table.
    cost
        What the schema took of the budget.

    Returns
    -------
    Config
        The settings.
    """
    p = config.privacy
    if p.defaults != "rule":
        return config
    left = after_schema(config, cost).privacy
    assert left.epsilon is not None
    found = signal(in_cohorts(config, sizes), left.epsilon, left.delta, left.relation, left.clients_per_unit)
    sections = {}
    strength = found * sizes.features if sizes.based else None
    rounds = config.rounds.total if "total" in config.rounds.model_fields_set else None
    for name, values in rule(found, _bounded_loss(config, found), strength, rounds, config.algorithm.name).items():
        section = getattr(config, name)
        new = {key: value for key, value in values.items() if key not in section.model_fields_set}
        sections[name] = section.model_copy(update=new)
    return config.model_copy(update=sections)


def number_clip(found: float, target: str = "number") -> float:
    """Return the cut of a slope that nothing else bounds: more information allows a larger one, which cuts fewer rows.

    Parameters
    ----------
    found : float
        The signal.
    target : str
        "number" or "time".

    Returns
    -------
    float
        The cut, as a share of the label's range; of a time 1.

    Examples
    --------
    >>> [number_clip(found) for found in (2.0, 50.0, 1000.0)], number_clip(50.0, "time")
    ([0.12, 0.25, 0.5], 1.0)
    """
    if target == "time":
        return TIME_CLIP
    return min(max(NUMBER_CLIP * math.sqrt(found / 50), LEAST_NUMBER_CLIP), MOST_NUMBER_CLIP)


def in_cohorts(config: Config, sizes: Sizes) -> Sizes:
    """Return the sizes of what adds noise: members of a cohort share theirs, so a cohort counts as one client.

    Parameters
    ----------
    config, sizes
        The settings, and the sizes of the clients.

    Returns
    -------
    Sizes
        The sizes of cohorts, or the same sizes in the local model.
    """
    if config.privacy.trust != "cohorts":
        return sizes
    cohorts = max(1, len(sizes.rows) // (config.cohorts.size or len(sizes.rows)))
    return sizes._replace(rows=np.full(cohorts, sizes.rows.sum() / cohorts))


def _bounded_loss(config: Config, found: float) -> Loss:
    """The loss with its natural bound; a slope that nothing bounds is cut so that the rule's clip is `number_clip`."""
    make = loss_factory(config)
    if math.isinf(make().gradient_bound(1.0)):
        return make(clip=number_clip(found, make().target) / CLIP)
    return make(clip=1.0)


def weighed(found: float, rarest: float | None, classes: int = 2) -> float:
    """Return the signal for the rarest class: in proportion to its share. Classes of equal size leave it as it is.

    Parameters
    ----------
    found : float
        The signal.
    rarest : float or None
        The share of the rarest class; None: unknown.
    classes : int
        How many there are.

    Returns
    -------
    float
        The weighed signal.

    Examples
    --------
    >>> weighed(14.2, 0.045), weighed(14.2, None)
    (1.278, 14.2)
    """
    return found if rarest is None else round(found * min(classes * rarest, 1.0), 12)


def warning(config: Config, federation: Federation) -> str | None:
    """Return a warning before a run whose budget is too small for its table, if the rule made its settings.

    It uses the share of the rarest class, so it is for the owner of the rows alone, and is stored nowhere.

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
    labels = federation.label_counts.sum(axis=0)
    rarest = float(labels.min() / labels.sum()) if len(labels) else None
    sizes = in_cohorts(config, sizes_of(federation))
    mapped, schema = config.data.features != "raw", federation.schema
    units = "persons" if schema and schema.unit_column else "rows"
    return verdict(sizes, p.epsilon, p.delta, p.relation, rarest, p.clients_per_unit, mapped, units)


def verdict(
    sizes: Sizes,
    epsilon: float,
    delta: float,
    relation: str = "add-remove",
    rarest: float | None = None,
    clients_per_unit: int = 1,
    mapped: bool = False,
    units: str = "rows",
) -> str | None:
    """Return a sentence about a budget that is too small for these sizes, with one that would be enough.

    Parameters
    ----------
    sizes : Sizes
        What is public about the table.
    epsilon, delta, relation
        The budget.
    rarest : float, optional
        The share of the rarest class, as far as it is known; None: the classes count as equally large.
    clients_per_unit : int
        As in `signal`.
    mapped : bool
        Whether the features come from a feature map: the limits are those of standardised columns.
    units : str
        What the sizes count.

    Returns
    -------
    str or None
        The sentence; None if the budget is large enough.
    """

    counted = sizes._replace(features=round(BASED_FEATURES * sizes.classes)) if sizes.based else sizes

    def found(epsilon: float) -> float:
        return weighed(signal(counted, epsilon, delta, relation, clients_per_unit), rarest, sizes.classes)

    now, enough = found(epsilon), epsilon
    rare = ""
    if rarest is not None and rarest * sizes.classes < 2 * RARE:
        rare = (
            f"The rarest class has {100 * rarest:.2g}% of the rows: accuracy may stay at the majority rate at any budget; see "
            "the AUC."
        )
    if now >= ENOUGH:
        return rare or None
    while found(enough) < ENOUGH and enough < 1000:
        enough *= 1.1
    ways = [f"epsilon = {float(f'{enough:.2g}'):g}"] if found(enough) >= ENOUGH else []
    ways.append(f"about {math.ceil(ENOUGH / now * float(sizes.rows.sum()))} {units} in all")
    if not sizes.based and (fewer := int(sizes.features * now / ENOUGH)):
        ways.append(f"{fewer} feature{'s' if fewer > 1 else ''} instead of {sizes.features}")
    whose = " for the rarest class" if sizes.classes > 2 else ""
    how = (
        f"the model may learn nothing: expect an AUC near 0.5{whose} and an accuracy at or below the majority rate"
        if now < TOO_LITTLE
        else f"the AUC{whose} is clearly below that without noise, and accuracy may not beat the majority rate"
    )
    if sizes.based:
        how = "accuracy is clearly below that without noise"
    elif mapped:
        how = "standardised tables learn little; images and texts often learn more, as few of their directions matter"
    limit = TOO_LITTLE if now < TOO_LITTLE and not sizes.based else ENOUGH
    return (
        f"The budget is small for {'these examples' if mapped else 'this table'}: the signal is {now:.2g}, and below "
        f"{limit:g} {how} (docs/defaults.md). Enough would be {', or '.join(ways)}. {rare}"
    ).rstrip()
