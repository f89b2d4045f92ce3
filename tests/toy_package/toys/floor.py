"""Weights that are at least some number."""

import math

from fedpdm.problem.penalties import Penalty, box


def floor(*, lowest: float) -> Penalty:
    return box(lowest, math.inf)._replace(name="floor")
