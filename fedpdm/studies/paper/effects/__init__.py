"""Measure the claimed effects: pure functions from results to one number per seed, positive on the claimed side."""

from fedpdm.studies.paper.effects.accuracy import (
    BASELINES,
    difference,
    element_wise,
    more_robust,
    more_sensitive,
    noise_costs,
    over_curves,
    over_points,
    rises,
    top_k_gap,
)
from fedpdm.studies.paper.effects.costs import (
    FIT,
    ROUNDING,
    TOLERANCE,
    cost_falls,
    cost_ratio,
    exact,
    falls_like_one_over_t,
    fit_quality,
    half_of_two_vectors,
    sparser,
)
from fedpdm.studies.paper.effects.table import Effect, FirstSeeds, LastQuarter, MissingCellError, Table

__all__ = ["Table", "Effect", "FirstSeeds", "LastQuarter", "MissingCellError", "BASELINES", "TOLERANCE", "ROUNDING"]
__all__ += ["over_curves", "over_points", "difference", "more_sensitive", "top_k_gap", "rises", "noise_costs", "more_robust"]
__all__ += ["element_wise", "cost_falls", "cost_ratio", "half_of_two_vectors", "sparser", "exact", "fit_quality"]
__all__ += ["falls_like_one_over_t", "FIT"]
