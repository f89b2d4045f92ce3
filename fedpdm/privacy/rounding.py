r"""The error of floating-point arithmetic in a local solution, which a real client adds to its sensitivity.

The bounds of `fedpdm.privacy.sensitivity` are for exact arithmetic. A computed solution differs from the exact one by at most
E for any data, so two neighbours differ by at most 2E more. E follows from the standard model: every operation has a
relative error of at most u, and a sum of k terms, in any order, one of $\gamma_k = ku/(1-ku)$. With n examples of norm
at most R, models of at most B (below), D coordinates in m classes:

- scores: $4\gamma_d R B$; the slopes are M-Lipschitz in them (1/2 for softmax), and their own evaluation costs
  $4(4RB + 2m + 12)u$, times 2M where that is above 1, plus 4uG for the last operations on a slope of size G;
- the gradient, a mean over n examples of norm at most $cGR$: $\gamma_{n+D+8}cGR$ plus cR times the slopes' error, c being
  the largest weight of a class (1 without weights), $G = \sqrt2$ or the bound on a slope where that is larger;
- the step: $8u$ times the norms that it adds up, times the step size, and $4uB$ for the new point.

$B = \|x_0\| + \eta S P$ with $P = cGR + 0.65\beta\sqrt D + \|v\|$, the largest direction at $x_0$, and
$S = \sum_{r<Q} |1-\eta w|^r$, bounds every iterate. A step's error reaches the end with a factor of at most
$\max(1, |1-\eta w|)^Q$, since the steps do not expand (Lemma 7 of docs/privacy/proofs.md). The sum is doubled for what is of
second order.

In float32 E is of the order of the sensitivity itself for a few thousand examples. So a real client solves in float64, where
it is below a millionth of it.
"""

import math
from typing import NamedTuple

__all__ = ["DOUBLE", "Shape", "iterate_bound", "solution_error", "sensitivity_margin"]

DOUBLE = 2.0**-53  # u of float64
_STEEPEST = 0.65  # |b'| of the non-convex term is at most 3 sqrt(3)/8


class Shape(NamedTuple):
    """The public facts about a client's local problem."""

    examples: int  # n
    features: int  # d
    classes: int  # m
    radius: float  # R
    weight: float  # w
    beta: float
    step_size: float
    steps: int  # Q
    start: float  # norm of x0
    slope: float  # norm of the linear term v
    heaviest: float = 1.0  # c, the largest weight of a class
    curvature: float = 0.5  # M: how fast the slope of one example rises with its scores
    steepest: float = math.sqrt(2)  # a bound on that slope; it counts where it is above sqrt(2)

    @property
    def push_of_rows(self) -> float:
        """The most that the mean gradient of any rows can have: c G R."""
        return max(self.steepest, math.sqrt(2)) * self.heaviest * self.radius


def _push(shape: Shape) -> float:
    """Return P, the largest direction at x0."""
    size = shape.features * shape.classes
    return shape.push_of_rows + _STEEPEST * shape.beta * math.sqrt(size) + shape.slope


def iterate_bound(shape: Shape) -> float:
    """Return B: no iterate has a larger norm, for any data.

    Parameters
    ----------
    shape : Shape
        The local problem.

    Returns
    -------
    float
        B.
    """
    ratio = abs(1 - shape.step_size * shape.weight)
    reach = sum(ratio**r for r in range(shape.steps))
    return shape.start + shape.step_size * reach * _push(shape)


def solution_error(shape: Shape, unit: float = DOUBLE) -> float:
    """Return E, the largest distance of the computed solution from the exact one, for any data.

    Formal guarantee: at the head of the module, for Q steps that do not expand.

    Parameters
    ----------
    shape : Shape
        The local problem.
    unit : float
        The unit roundoff u.

    Returns
    -------
    float
        E; infinite if the sums are too long for the precision.
    """
    size, bound, radius = shape.features * shape.classes, iterate_bound(shape), shape.radius
    if (shape.examples + size + 8) * unit >= 0.5 or not math.isfinite(bound):
        return math.inf

    def gamma(terms: int) -> float:
        return terms * unit / (1 - terms * unit)

    scores = 4 * gamma(shape.features) * radius * bound
    evaluated = 4 * (4 * radius * bound + 2 * shape.classes + 12) * unit
    slopes = max(shape.curvature, 0.5) * scores + max(2 * shape.curvature, 1.0) * evaluated + 4 * unit * shape.steepest
    gradient = gamma(shape.examples + size + 8) * shape.push_of_rows + shape.heaviest * radius * slopes
    step = shape.step_size * (gradient + 8 * unit * (2 * _push(shape) + 2 * shape.weight * bound)) + 4 * unit * bound
    growth = max(1.0, abs(1 - shape.step_size * shape.weight)) ** shape.steps
    return 2 * shape.steps * growth * step


def sensitivity_margin(shape: Shape, certified: float | None = None, unit: float = DOUBLE) -> float:
    r"""Return how much rounding adds to the distance of two neighbours' solutions: 2E.

    If a solve stops by a tolerance, the true gradient at the end exceeds the computed one by at most $(2Q + 3) e/\eta$, where e
    is the error of one step. This adds twice that, over $w - \beta/2$, to the distance of the two ends.

    Parameters
    ----------
    shape : Shape
        The local problem.
    certified : float, optional
        The strong convexity $w - \beta/2$, if the solve stops by a tolerance.
    unit : float
        The unit roundoff u.

    Returns
    -------
    float
        The margin.
    """
    error = solution_error(shape, unit)
    if certified is None:
        return 2 * error
    return 2 * (2 * shape.steps + 3) * error / shape.steps / shape.step_size / certified
