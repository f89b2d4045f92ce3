"""The silent places of the paper as factors, each with its plausible readings.

The first level of a factor is our reading (docs/reading-the-paper.md). The model that is tested is a factor too, but needs no
further run: every run measures both the last model and the tail average.
"""

from typing import NamedTuple

from fedpdm.choices import SERVER_RULE

__all__ = ["FACTORS", "TESTED", "Factor", "Level", "Reading", "our_reading"]

# The level of every factor, by the factor's name
Reading = dict[str, str]

EVERYONE = ("fedpdm", "fedavg", "fedprox", "scaffold", "feddyn")


class Level(NamedTuple):
    """One reading of a silent place.

    Attributes
    ----------
    name
        A short name, for tables.
    settings
        The settings that make it; c0 and the noise of the baselines change epsilon (`fedpdm.studies.paper.multiverse.cells`).
    """

    name: str
    settings: tuple[str, ...] = ()


class Factor(NamedTuple):
    """A silent place of the paper.

    Attributes
    ----------
    name, title
        A short name, and the place in words.
    levels
        The readings; ours is first.
    algorithms
        The algorithms that it concerns.
    only_noise
        Whether it matters with noise only.
    """

    name: str
    title: str
    levels: tuple[Level, ...]
    algorithms: tuple[str, ...] = EVERYONE
    only_noise: bool = False


def _levels(key: str, *values: object) -> tuple[Level, ...]:
    return tuple(Level(str(value), (f"{key}={value}",)) for value in values)


FACTORS = (
    Factor("server", "server rule", _levels("algorithm.server_rule", *SERVER_RULE.values), algorithms=EVERYONE[:1]),
    Factor("steps", "cap on local steps", _levels("local.steps", 10, 5, 30)),
    Factor("schedule", "step size rule", _levels("local.schedule", "inverse-sqrt", "constant")),
    Factor(
        "features",
        "scale of features",
        (
            Level("as given", ("data.scaling=none",)),
            Level("norm 1", ("data.scaling=unit",)),
            Level("centred, norm 1", ("data.scaling=centred",)),
        ),
    ),
    Factor("clip", "G, the bound on a gradient", (Level("1"), *_levels("privacy.clip", 0.3, 3)), only_noise=True),
    Factor("c0", "c0 of Theorem 2", (Level("1"), Level("0.5"), Level("2")), only_noise=True),
    Factor(
        "penalty",
        "scale and place of h",
        (
            Level("sum, prox", ("problem.penalty_scale=sum", "problem.penalty_by=prox")),
            Level("sum, subgradient", ("problem.penalty_scale=sum", "problem.penalty_by=subgradient")),
            Level("mean, prox", ("problem.penalty_scale=mean", "problem.penalty_by=prox")),
        ),
    ),
    Factor("mu", "FedProx mu", _levels("algorithm.mu", 0.1, 0.01, 1.0), algorithms=("fedprox",)),
    Factor("alpha", "FedDyn alpha", _levels("algorithm.alpha", 10.0, 0.1, 1.0), algorithms=("feddyn",)),
    Factor(
        "noise",
        "noise of the baselines",
        (Level("own sensitivity"), Level("that of FedPDM")),
        algorithms=EVERYONE[1:],
        only_noise=True,
    ),
    Factor("rounds", "number of rounds", _levels("rounds.total", 100, 50, 200)),
    Factor("start", "size of the initial points", _levels("rounds.initial_scale", 0.01, 0.1, 1.0)),
)
# Which model is tested: the key of a result
TESTED = {"last": "last", "tail average": "averaged"}


def our_reading() -> Reading:
    """Return the reading of the other studies.

    Returns
    -------
    dict of str to str
        The first level of every factor.
    """
    return {factor.name: factor.levels[0].name for factor in FACTORS}
