"""The error of floating-point arithmetic in a local solution stays below its bound."""

import jax
import numpy as np
import pytest

from fedpdm.algorithms.local import Examples, LocalPlan, solve
from fedpdm.privacy.rounding import DOUBLE, Shape, iterate_bound, sensitivity_margin, solution_error
from fedpdm.privacy.sensitivity import Curvature, contractive
from fedpdm.problem import Problem, huber, logistic, penalties, poisson, quantile, softmax, squared
from fedpdm.problem.losses import with_class_weights
from fedpdm.problem.survival import piecewise_exponential

SINGLE = 2.0**-24
CASES = [(n, d, m, steps, weight, beta, scale) for n, d, m in ((30, 5, 3), (800, 40, 10)) for steps in (1, 25)
         for weight, beta in ((0.0, 0.0), (0.5, 0.2)) for scale in (0.1, 30.0)]  # fmt: skip


def solutions(case, loss, seed: int, heaviest: float = 1.0, clip: float = 0.4) -> tuple[Shape, np.ndarray, np.ndarray]:
    n, d, m, steps, weight, beta, scale = case
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, d))
    features = (features / np.linalg.norm(features, axis=1, keepdims=True)).astype(np.float32)
    features *= np.float32(1 - 1e-6)
    x0, v = (scale * rng.normal(size=(m, d)).astype(np.float32) for _ in range(2))
    v *= np.float32(0.01)
    made = loss(clip=clip)
    number = made.target != "classes"
    labels = rng.uniform(0.01, 1, n).astype(np.float32) if number else rng.integers(0, m, n).astype(np.int32)
    step_size = 2.0 ** -(0 if not weight else 1) / max(2 * made.smoothness(1.0), 1.0)
    weighted = with_class_weights(made, [heaviest] * m) if heaviest != 1 else made
    problem = Problem(weighted, penalties.none(), beta)

    def run(dtype) -> np.ndarray:
        with jax.enable_x64(dtype is np.float64):
            examples = Examples(features.astype(dtype)[None], labels[None], np.array([n], np.int32), np.int32(0))  # type: ignore[arg-type]
            plan = LocalPlan(steps, 0, step_size)
            key = jax.random.key(0)
            x, _ = solve(problem, plan, examples, x0.astype(dtype), v.astype(dtype), weight, dtype(step_size), key)
            return np.asarray(x, np.float64)

    shape = Shape(n, d, m, 1.0, weight, beta, step_size, steps, float(np.linalg.norm(x0)), float(np.linalg.norm(v)))
    shape = shape._replace(heaviest=heaviest, curvature=made.smoothness(1.0), steepest=made.gradient_bound(1.0))
    return shape, run(np.float32), run(np.float64)


@pytest.mark.parametrize("loss", [softmax, logistic])
def test_float32_stays_within_the_bound_for_float32(loss) -> None:
    """The same formula with float32's unit, measured against float64; so the one for float64 can be believed."""
    shares = []
    for seed, case in enumerate(CASES):
        shape, single, double = solutions(case, loss, seed)
        error = float(np.linalg.norm(single - double))
        shares.append(error / solution_error(shape, SINGLE))
        assert np.linalg.norm(double) <= iterate_bound(shape)
    assert max(shares) < 1
    assert max(shares) > 1e-4, "the bound is not without touch"


NUMBERS = [squared, huber, quantile, poisson, piecewise_exponential]


@pytest.mark.parametrize("loss", NUMBERS)
def test_losses_of_numbers_stay_within_the_bound_too(loss) -> None:
    for seed, case in enumerate([(30, 5, 1, 25, 0.5, 0.2, 1.0), (300, 20, 1, 1, 0.0, 0.0, 30.0)]):
        shape, single, double = solutions(case, loss, seed)
        assert np.linalg.norm(single - double) <= solution_error(shape, SINGLE)
        assert np.linalg.norm(double) <= iterate_bound(shape)


def test_a_large_clip_of_residuals_is_in_the_bound_and_a_bound_without_it_is_caught() -> None:
    case = (30, 5, 1, 3, 0.0, 0.0, 1000.0)
    shape, single, double = solutions(case, squared, 0, clip=500.0)
    assert np.linalg.norm(single - double) <= solution_error(shape, SINGLE)
    moved = shape.start - float(np.linalg.norm(double))
    assert moved <= iterate_bound(shape) - shape.start
    assert moved > iterate_bound(shape._replace(steepest=1.0)) - shape.start


def test_a_bound_without_the_models_size_is_caught() -> None:
    """Negative control: scores of a large model carry errors in proportion to it."""
    case = (30, 5, 3, 2, 0.5, 0.2, 30_000.0)
    shape, single, double = solutions(case, softmax, 0)
    error = float(np.linalg.norm(single - double))
    assert error <= solution_error(shape, SINGLE)
    assert error > solution_error(shape._replace(start=0.0, slope=0.0), SINGLE)


def test_weights_of_classes_are_in_the_bound_and_a_bound_without_them_is_caught() -> None:
    case = (30, 5, 3, 1, 0.5, 0.0, 0.1)
    shape, single, double = solutions(case, softmax, 0, heaviest=500.0)
    assert np.linalg.norm(single - double) <= solution_error(shape, SINGLE)
    assert np.linalg.norm(double) <= iterate_bound(shape)
    assert np.linalg.norm(double) > iterate_bound(shape._replace(heaviest=1.0))


def test_float64_costs_a_client_nothing_and_float32_would() -> None:
    mnist = Shape(600, 785, 10, 1.0, 0.01, 0.0, 3.0, 20, 5.0, 0.1)
    sensitivity = float(contractive(0.5, Curvature(0.01, 0.5), 3.0, 20, 600.0))
    assert sensitivity_margin(mnist, unit=DOUBLE) < 1e-6 * sensitivity
    assert sensitivity_margin(mnist, unit=SINGLE) > sensitivity
    assert sensitivity_margin(mnist, certified=0.01) < 1e-4 * sensitivity
    assert sensitivity_margin(mnist._replace(start=float("inf"))) == float("inf")
