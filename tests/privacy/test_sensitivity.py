"""Sensitivity bounds against brute force: no pair of neighbouring data sets that a search finds may exceed them.

Every pair goes through the real local solver: same key, start, dual and settings, and one slot that is filled in one
run and empty (a row of zeros, whose gradient is zero) in the other. Thousands of random pairs, of which the worst are
driven further by local search over data, start and dual. The same search must find a breach where a bound is wrong.
"""

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from fedpdm.algorithms.local import Examples, LocalPlan, solve
from fedpdm.errors import ConfigError
from fedpdm.privacy import sensitivity as bounds
from fedpdm.privacy.sensitivity import Curvature, contraction, require_contraction
from fedpdm.problem import Loss, Problem, huber, logistic, penalties, poisson, quantile, softmax, squared
from fedpdm.problem.objective import concave_gradient
from fedpdm.problem.survival import piecewise_exponential

SLOTS, FEATURES = 6, 2
STEPS = (1, 2, 7, 40)
LOSSES = {"logistic-3": (logistic, 3), "softmax-2": (softmax, 2), "softmax-3": (softmax, 3), "softmax-10": (softmax, 10)}
CLIPS = (1.0, 0.5, 0.1)
EVERY_LOSS = [(name, clip) for name in LOSSES for clip in CLIPS]
EXACT, ROUNDED = 1e-6, 1e-3  # room above 1 for the arithmetic of float64 and float32
QUICKLY = {"xla_backend_optimization_level": 0}  # compiling takes longer than running


class Pair(NamedTuple):
    """Two neighbouring runs: everything public, and the data of which slot 0 is filled or empty."""

    features: Array  # [slots, n], cut to norm 1 before use
    labels: Array
    x0: Array
    dual: Array
    weight: Array
    step_size: Array
    steps: Array  # place in the case's steps
    clip: Array  # place in the case's losses, most of which differ in their clip only
    key: Array


class Case(NamedTuple):
    """One way of solving, and the bound that is claimed for it: `bound(pair, clip, curvature, steps, slope)`."""

    losses: tuple[Loss, ...]  # with as many outputs: a pair takes one of them
    classes: int
    bound: Callable[[Pair, Array, Curvature, int, Array], Array]
    clips: tuple[float, ...] = ()  # C of each loss, if it is not the loss's own
    beta: float = 0.0
    local: LocalPlan = LocalPlan(1, 0, 0.0)
    steps: tuple[int, ...] = STEPS
    lightest: float = 0.0  # least weight of the proximal term beyond beta/2
    stretch: float = 1.0  # the largest step size in units of the one where c = 1
    data_free: bool = False  # c of the data-free part alone
    size_of_the_other: int = SLOTS
    largest_start: float = 30.0

    def clip(self, pair: Pair) -> Array:
        return jnp.asarray(self.clips or [loss.gradient_bound(1.0) for loss in self.losses])[pair.clip]

    def loss(self, pair: Pair) -> Loss:
        """One loss for all of them, so that it is compiled once."""
        gradients = [loss.gradient for loss in self.losses]
        return self.losses[0]._replace(gradient=lambda *args: jax.lax.switch(pair.clip, gradients, *args))


def cut(features: Array) -> Array:
    return features / jnp.maximum(1.0, jnp.linalg.norm(features, axis=-1, keepdims=True))


def curvature_of(case: Case, weight: Array, which: Array) -> Curvature:
    smoothness = jnp.asarray([loss.smoothness(1.0) for loss in case.losses])
    return Curvature(weight, 0.0 if case.data_free else smoothness[which], case.beta)


def ratio(case: Case, pair: Pair) -> Array:
    """How far the two solutions are apart, in units of the bound."""
    problem = Problem(case.loss(pair), penalties.none(), case.beta)
    plan = case.local._replace(steps=jnp.asarray(case.steps)[pair.steps])
    filled = cut(pair.features)[::-1]  # the tested slot comes last, so that a smaller size can leave it out

    def solution(features: Array, size: Array) -> Array:
        examples = Examples(features[None], pair.labels[::-1][None], size[None], jnp.int32(0))
        key = jax.random.wrap_key_data(pair.key)
        return solve(problem, plan, examples, pair.x0, -pair.dual, pair.weight, pair.step_size, key)[0]

    both = jax.vmap(solution)(jnp.stack([filled, filled.at[-1].set(0.0)]), jnp.array([SLOTS, case.size_of_the_other]))
    slope = jnp.linalg.norm(case.beta * concave_gradient(pair.x0) - pair.dual)
    curvature = curvature_of(case, pair.weight, pair.clip)
    bound = jnp.stack([jnp.asarray(case.bound(pair, case.clip(pair), curvature, q, slope)) for q in case.steps])[pair.steps]
    return jnp.linalg.norm(both[0] - both[1]) / bound


def random_pairs(case: Case, count: int, rng: np.random.Generator) -> Pair:
    """Half of it tame, half of it made to be extreme: saturated, aligned, empty or equal examples, edges of the settings."""
    m, n = case.classes, FEATURES

    def chance(p: float, dimensions: int) -> np.ndarray:
        return rng.random((count,) + (1,) * dimensions) < p

    def power(low: float, high: float, dimensions: int) -> np.ndarray:
        return 10 ** rng.uniform(low, high, (count,) + (1,) * dimensions)

    features = rng.normal(size=(count, SLOTS, n))
    features *= np.where(chance(0.3, 2), rng.random((count, SLOTS, 1)), 9.0)
    features = np.where(chance(0.3, 2), features[:, :1] * rng.choice([-1.0, 1.0], (count, SLOTS, 1)), features)  # one line
    features = np.where(chance(0.3, 2) & (np.arange(SLOTS)[:, None] > 0), 0.0, features)  # nobody else
    number = case.losses[0].target != "classes"
    labels = rng.random((count, SLOTS)).round(rng.integers(0, 3)) if number else rng.integers(0, m, (count, SLOTS))
    labels = np.where(chance(0.3, 1), labels[:, 1:2], labels)
    clips = np.arange(count) % len(case.losses)
    if number:  # the sign of a time says whether the event was seen
        times = np.array([loss.target == "time" for loss in case.losses])[clips]
        labels = np.where(times[:, None], labels * rng.choice([-1.0, 1.0], (count, SLOTS)), labels)
    own = features[:, :1] / np.maximum(1.0, np.linalg.norm(features[:, :1], axis=-1, keepdims=True))
    if number:
        wrong = rng.choice([-1.0, 1.0], (count, 1, 1)) * own
    else:
        wrong = (np.eye(m)[(labels[:, 0] + 1) % m] - np.eye(m)[labels[:, 0]])[:, :, None] * own
    x0 = rng.normal(size=(count, m, n))
    x0 = np.where(chance(0.5, 2), wrong + 0.1 * x0, x0) * np.minimum(power(-1.5, 2.0, 2), case.largest_start)
    dual = rng.normal(size=(count, m, n)) * np.where(chance(0.5, 2), 0.0, power(-2.0, 0.7, 2))
    weight = case.lightest + case.beta / 2 + np.where(chance(0.3, 0), 0.0, power(-2.0, 1.0, 0))
    largest = 2 * case.stretch / np.asarray(curvature_of(case, weight, clips).highest)
    step_size = largest * np.where(chance(0.4, 0), 1.0, power(-1.5, 0.0, 0))
    steps = rng.integers(0, len(case.steps), count)
    keys = rng.integers(0, 2**32, (count, 2), dtype=np.uint32)
    return Pair(features, labels, x0, dual, weight, step_size, steps, clips, keys)


def nudged(pairs: Pair, rng: np.random.Generator) -> Pair:
    """Every pair with other data, start and dual nearby."""

    def nudge(values: np.ndarray) -> np.ndarray:
        size = 10 ** rng.uniform(-3, 0, (len(values), 1, 1)) * (0.1 + np.sqrt((values**2).mean((1, 2), keepdims=True)))
        return values + size * rng.normal(size=values.shape)

    return pairs._replace(features=nudge(pairs.features), x0=nudge(pairs.x0), dual=nudge(pairs.dual))


def search(
    case: Case, batches: int = 3, climb: int = 10, size: int = 384, seed: int = 0, wide: bool = True
) -> tuple[float, ...]:
    """For every clip the largest ratio among `batches * size` random pairs and by local search from the worst of them."""
    rng = np.random.default_rng(seed)
    every_clip = range(len(case.losses))
    with jax.enable_x64(wide):
        ratios = jax.jit(jax.vmap(functools.partial(ratio, case)), compiler_options=QUICKLY)
        drawn = [random_pairs(case, size, rng) for _ in range(batches)]
        pairs = jax.tree.map(lambda *leaves: np.concatenate(leaves), *drawn)
        found = np.concatenate([np.asarray(ratios(batch)) for batch in drawn])
        assert np.isfinite(found).all()
        order = np.argsort(-found)
        worst = [order[pairs.clip[order] == clip][: size // (8 * len(case.losses))] for clip in every_clip]
        best = np.concatenate(worst).repeat(8)
        held, value = jax.tree.map(lambda leaf: leaf[best], pairs), found[best]
        for _ in range(climb):
            tried = nudged(held, rng)
            reached = np.asarray(ratios(tried))
            better = np.flatnonzero(reached > value)
            for new, old in zip(tried, held, strict=True):
                old[better] = new[better]
            value[better] = reached[better]
    return tuple(float(value[held.clip == clip].max()) for clip in every_clip)


def contractive(losses: tuple[Loss, ...], classes: int, **more) -> Case:
    def bound(pair: Pair, clip: Array, curvature: Curvature, steps: int, slope: Array) -> Array:
        return bounds.contractive(clip, curvature, pair.step_size, steps, SLOTS)

    return Case(losses, classes, bound, **more)


def linearised(losses: tuple[Loss, ...], classes: int, **more) -> Case:
    def bound(pair: Pair, clip: Array, curvature: Curvature, steps: int, slope: Array) -> Array:
        return bounds.linearised(clip, pair.weight, pair.step_size, steps, SLOTS)

    return Case(losses, classes, bound, local=LocalPlan(1, 0, 0.0, linearised=True), stretch=1.5, **more)


def one_pass(losses: tuple[Loss, ...], classes: int, **more) -> Case:
    def bound(pair: Pair, clip: Array, curvature: Curvature, steps: int, slope: Array) -> Array:
        return bounds.one_pass(clip, pair.step_size, 2)

    return Case(losses, classes, bound, local=LocalPlan(1, 2, 0.0), steps=(1, 2, 3), **more)


def certified(losses: tuple[Loss, ...], classes: int, tolerance: float = 1e-3, **more) -> Case:
    """With caps that are often too small for the tolerance, and one that rarely is."""

    def bound(pair: Pair, clip: Array, curvature: Curvature, steps: int, slope: Array) -> Array:
        reached = bounds.reached(clip, curvature, tolerance, pair.step_size, steps, slope)
        return bounds.certified(clip, curvature, reached, SLOTS)

    return Case(
        losses, classes, bound, local=LocalPlan(1, 0, 0.0, tolerance=tolerance**2), steps=(1, 7, 60), lightest=0.2, **more
    )


def every_step(losses: tuple[Loss, ...], classes: int, **more) -> Case:
    """The noise is on the data gradient: one step from x0, in units of the step size."""

    def bound(pair: Pair, clip: Array, curvature: Curvature, steps: int, slope: Array) -> Array:
        return pair.step_size * bounds.every_step(clip, SLOTS)

    return Case(losses, classes, bound, steps=(1,), stretch=3.0, **more)


def batch_clipped(loss: Loss, classes: int, level: float, **more) -> Case:
    """Batches of two, used again and again."""

    def bound(pair: Pair, clip: Array, curvature: Curvature, steps: int, slope: Array) -> Array:
        return bounds.batch_clipped(clip, curvature, pair.step_size, steps)

    return Case(
        (loss,), classes, bound, (level,), local=LocalPlan(1, 2, 0.0, batch_clip=level), data_free=True, lightest=0.01, **more
    )


def norm_clipped_softmax(clip: float) -> Loss:
    """The broken variant: an example's gradient cut by its norm, which for m > 2 no convex function has."""
    loss = softmax()

    def gradient(model: Array, features: Array, labels: Array, weights: Array) -> Array:
        def one(a: Array, label: Array) -> Array:
            g = loss.gradient(model, a[None], label[None], jnp.ones(1))
            return g * jnp.minimum(1.0, clip / (jnp.linalg.norm(g) + 1e-30))

        return jnp.tensordot(weights, jax.vmap(one)(features, labels), 1)

    return loss._replace(gradient=gradient)


MODES = {
    "contractive": (contractive, 0.9999),
    "linearised": (linearised, 0.9999),
    "one-pass": (one_pass, 0.9999),
    "certified": (certified, 0.75),
    "every-step": (every_step, 0.9999),
}
BETAS = {"logistic-3": 0.0, "softmax-2": 0.4, "softmax-3": 0.0, "softmax-10": 0.4}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mode", MODES)
def test_no_neighbours_exceed_the_bound_and_some_come_close(mode, name):
    make_case, least = MODES[mode]
    make_loss, classes = LOSSES[name]
    worst = search(make_case(tuple(make_loss(clip) for clip in CLIPS), classes, beta=BETAS[name]))
    assert max(worst) <= 1 + EXACT
    assert min(worst) >= least


NUMBERS = {"squared": squared, "huber": huber, "quantile": quantile, "poisson": poisson, "time": piecewise_exponential}


@pytest.mark.parametrize("mode", MODES)
def test_no_neighbours_exceed_the_bound_of_any_loss_for_numbers(mode):
    """All losses and clips at once: every pair of data sets takes one of them."""
    make_case, least = MODES[mode]
    every = tuple(make(clip=clip) for make in NUMBERS.values() for clip in CLIPS)
    more = {"tolerance": 1e-4} if mode == "certified" else {}  # well below the smallest of the gradients, C/n = 0.0017
    worst = search(make_case(every, 1, beta=0.4 if mode in ("one-pass", "every-step") else 0.0, **more), size=384 * 3)
    assert len(worst) == 15
    assert max(worst) <= 1 + EXACT
    assert min(worst) >= least


@pytest.mark.parametrize("name", ["softmax-2", "softmax-3"])
def test_the_other_value_of_beta(name):
    make_loss, classes = LOSSES[name]
    worst = search(contractive(tuple(make_loss(clip) for clip in CLIPS), classes, beta=0.4 - BETAS[name]))
    assert max(worst) <= 1 + EXACT
    assert min(worst) >= 0.9999


@pytest.mark.parametrize(
    ("name", "clip", "least"),
    [
        ("logistic-3", 0.5, 0.45),
        ("logistic-3", 0.1, 0.9),
        ("softmax-2", 0.1, 0.9),
        ("softmax-3", 1.0, 0.25),
        ("softmax-3", 0.5, 0.45),
        ("softmax-10", 0.1, 0.9),
    ],
)
def test_no_neighbours_exceed_the_bound_of_batch_clipping(name, clip, least):
    """The loss itself is not clipped. To get near 2 G one example must turn a batch around, which needs a low G."""
    make_loss, classes = LOSSES[name]
    case = batch_clipped(make_loss(), classes, clip * make_loss().gradient_bound(1.0), beta=0.4 if clip == 0.5 else 0.0)
    assert least <= search(case)[0] <= 1 + EXACT


def test_no_neighbours_exceed_the_bound_of_batch_clipping_for_any_loss_of_numbers():
    losses = tuple(make() for make in NUMBERS.values())
    case = batch_clipped(losses[0], 1, 0.02, largest_start=2.0)
    worst = search(case._replace(losses=losses, clips=(0.02,) * len(losses)), size=384 * 2)
    assert max(worst) <= 1 + EXACT
    assert min(worst) >= 0.9


@pytest.mark.parametrize(("tolerance", "least"), [(0.3, 0.25), (1e-4, 0.9)])
def test_certified_bound_at_other_tolerances(tolerance, least):
    assert least <= search(certified((softmax(0.5),), 3, tolerance))[0] <= 1 + EXACT


@pytest.mark.parametrize("mode", ["contractive", "one-pass"])
def test_float32_stays_within_the_bound_up_to_rounding(mode):
    case = MODES[mode][0]((softmax(0.5),), 3, beta=0.4, largest_start=3.0)
    assert 0.5 <= search(case, wide=False)[0] <= 1 + ROUNDED


# --- If a condition is broken, the same search finds a breach. ---


def test_clipping_by_the_norm_is_caught_where_gap_clipping_passes():
    """More than two classes: norm clipping loses the contraction, if only by parts in a thousand."""
    effort = {"climb": 40, "size": 256, "seed": 1}
    clip = 0.5 * 2**0.5
    assert search(contractive((norm_clipped_softmax(clip),), 3, clips=(clip,), steps=(40,)), **effort)[0] > 1 + 1e-4
    assert search(contractive((softmax(0.5),), 3, clips=(clip,), steps=(40,)), **effort)[0] <= 1 + EXACT


def with_slopes(loss: Loss, slopes: Callable[[Array, Array], Array]) -> Loss:
    """A loss of one score with another slope, and the bounds that it had."""

    def gradient(model: Array, features: Array, labels: Array, weights: Array) -> Array:
        return ((weights * slopes((features @ model.T)[:, 0], labels)) @ features)[None]

    return loss._replace(gradient=gradient)


def test_dropping_rows_with_large_residuals_is_caught_where_cutting_them_passes():
    """Bounded as well, but not monotone: a row that one run drops pulls at the other."""
    trimmed = with_slopes(squared(0.5), lambda s, y: jnp.where(jnp.abs(s - y) <= 0.5, s - y, 0.0))
    assert search(contractive((trimmed,), 1, steps=(40,)), climb=20)[0] > 1.05


def test_a_quantile_without_smoothing_is_caught():
    """Convex, but not smooth: at the step size of the smoothed loss its steps expand."""
    sharp = with_slopes(quantile(0.5, 0.1), lambda s, y: jnp.where(s > y, 0.5, -0.5))
    assert search(contractive((sharp,), 1, steps=(7, 40)), climb=20, size=384 * 8)[0] > 1.05


def test_an_exponential_slope_that_is_not_cut_above_is_caught():
    """A row with a large predicted count pulls without limit."""
    open_above = with_slopes(poisson(0.5), lambda s, y: jnp.maximum(jnp.exp(jnp.minimum(s, 30.0)) - y, -0.5))
    assert search(linearised((open_above,), 1), climb=2)[0] > 1.9


def test_an_unclipped_loss_is_caught():
    assert search(contractive((softmax(),), 3, clips=(softmax(0.5).gradient_bound(1.0),)))[0] > 1.9


def test_a_step_size_above_the_limit_is_caught():
    assert search(one_pass((softmax(0.5),), 3, stretch=1.3))[0] > 1.5


def test_dividing_by_the_private_count_is_caught():
    assert search(contractive((softmax(0.5),), 3, size_of_the_other=SLOTS - 1))[0] > 1.5


def test_counting_a_tolerance_as_a_fixed_number_of_steps_is_caught():
    losses = (softmax(0.5),)
    assert search(certified(losses, 3, tolerance=0.1)._replace(bound=contractive(losses, 3).bound))[0] > 1.3


def test_ignoring_that_the_cap_came_before_the_tolerance_is_caught():
    """The gradient that is left after the cap is not below the tolerance: `reached` says how large it can be."""
    case = certified((softmax(0.5),), 3, 1e-3, beta=0.4)
    assert gradient_left(case, lambda *_: 1e-3) > 100
    assert 0.5 < gradient_left(case, bounds.reached) <= 1 + EXACT


def gradient_left(case: Case, claim: Callable[..., Array]) -> float:
    """The largest full gradient at the solver's result, in units of what is claimed."""
    loss, tolerance = case.losses[0], case.local.tolerance**0.5
    problem = Problem(loss, penalties.none(), case.beta)

    def one(pair: Pair) -> Array:
        plan = case.local._replace(steps=jnp.asarray(case.steps)[pair.steps])
        features = cut(pair.features)
        examples = Examples(features[None], pair.labels[None], jnp.array([SLOTS]), jnp.int32(0))
        key = jax.random.wrap_key_data(pair.key)
        x, _ = solve(problem, plan, examples, pair.x0, -pair.dual, pair.weight, pair.step_size, key)
        data = loss.gradient(x, features, pair.labels, jnp.full(SLOTS, 1 / SLOTS))
        left = data + case.beta * concave_gradient(x) - pair.dual + pair.weight * (x - pair.x0)
        slope = jnp.linalg.norm(case.beta * concave_gradient(pair.x0) - pair.dual)
        curvature, clip = curvature_of(case, pair.weight, pair.clip), loss.gradient_bound(1.0)
        claims = [jnp.asarray(claim(clip, curvature, tolerance, pair.step_size, q, slope)) for q in case.steps]
        return jnp.linalg.norm(left) / jnp.stack(claims)[pair.steps]

    with jax.enable_x64(True):
        return float(jax.jit(jax.vmap(one), compiler_options=QUICKLY)(random_pairs(case, 2000, np.random.default_rng(0))).max())


# --- The basis of the bounds: clipped losses are convex and have the stated smoothness. ---


def convexity(loss: Loss, classes: int, count: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Over random x, y and one example: the least <g(x) - g(y), x - y>, and the most ||g(x) - g(y)||^2 over L times it.

    Both in units that make near and far pairs comparable.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, classes, FEATURES)) * 10 ** rng.uniform(-1, 1.5, (count, 1, 1))
    y = x + rng.normal(size=x.shape) * 10 ** rng.uniform(-2.5, 1.5, (count, 1, 1))
    a = rng.normal(size=(count, FEATURES))
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    labels = rng.integers(0, classes, count)

    def one(x: Array, y: Array, a: Array, label: Array) -> tuple[Array, Array]:
        g, h = (loss.gradient(z, a[None], label[None], jnp.ones(1)) for z in (x, y))
        product, distance = jnp.sum((g - h) * (x - y)), jnp.linalg.norm(x - y)
        change = jnp.linalg.norm(g - h)
        smooth = jnp.where(change > 1e-6 * distance, change**2 / (loss.smoothness(1.0) * jnp.abs(product) + 1e-300), 0.0)
        return product / distance**2, smooth

    with jax.enable_x64(True):
        products, smooth = (np.asarray(v) for v in jax.jit(jax.vmap(one), compiler_options=QUICKLY)(x, y, a, labels))
    return float(products.min()), float(smooth.max())


@pytest.mark.parametrize(("name", "clip"), EVERY_LOSS)
def test_clipped_losses_stay_monotone_and_co_coercive(name, clip):
    make_loss, classes = LOSSES[name]
    product, smooth = convexity(make_loss(clip), classes)
    assert product >= -1e-12
    steepest = min(clip, 0.5) * (1 - min(clip, 0.5)) * 4  # of the slope p, in units of L: a clip takes the steepest part away
    assert 0.8 * steepest < smooth <= 1 + EXACT


@pytest.mark.parametrize("classes", [3, 10])
def test_norm_clipping_is_not_monotone_beyond_two_classes(classes):
    product, _ = convexity(norm_clipped_softmax(0.7), classes)
    assert product < -1e-5


def test_norm_clipping_is_gap_clipping_with_two_classes():
    rng = np.random.default_rng(0)
    x, a, labels = rng.normal(size=(2, 3)) * 5, rng.normal(size=(50, 3)), rng.integers(0, 2, 50)
    with jax.enable_x64(True):
        a = a / np.linalg.norm(a, axis=1, keepdims=True)
        by_norm, by_gap = norm_clipped_softmax(0.3 * 2**0.5), softmax(0.3)
        weights = jnp.full(50, 0.1)
        one, other = (jax.jit(loss.gradient)(x, a, labels, weights) for loss in (by_norm, by_gap))
        np.testing.assert_allclose(one, other)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("clip", [0.5, 0.1])
def test_gap_clipping_is_the_gradient_of_an_infimal_convolution(classes, clip):
    """min over u of [loss(s + u e_y) + clip |u|], by search and differences in float64."""
    rng = np.random.default_rng(0)
    unit = np.eye(classes)

    def envelope(scores: np.ndarray, label: int) -> np.ndarray:
        def value(u: np.ndarray) -> np.ndarray:
            moved = scores + u[:, None] * unit[label]
            top = moved.max(axis=1)
            return top + np.log(np.exp(moved - top[:, None]).sum(axis=1)) - moved[:, label] + clip * np.abs(u)

        low, high = np.full(len(scores), -60.0), np.full(len(scores), 60.0)
        for _ in range(120):  # golden section: the function is convex in u
            left, right = high - 0.618034 * (high - low), low + 0.618034 * (high - low)
            lower = value(left) < value(right)
            low, high = np.where(lower, low, left), np.where(lower, right, high)
        return np.minimum(value((low + high) / 2), value(np.zeros(len(scores))))

    h, gradient = 1e-4, jax.jit(softmax(clip).gradient)
    for _ in range(40):
        scores, label = rng.normal(size=classes) * rng.choice([0.5, 3.0]), int(rng.integers(classes))
        slopes = (envelope(scores + h * unit, label) - envelope(scores - h * unit, label)) / (2 * h)
        with jax.enable_x64(True):
            found = gradient(scores[:, None], np.ones((1, 1)), np.array([label]), np.ones(1))
        np.testing.assert_allclose(found[:, 0], slopes, atol=1e-5)


def test_contraction_bounds_the_step_of_random_problems():
    """||I - eta H|| for the Hessians of real losses with all that is added to them, and for the extreme ones."""
    rng = np.random.default_rng(0)
    tightest = 0.0
    with jax.enable_x64(True):
        for make_loss, classes in LOSSES.values():
            loss = make_loss()
            hessian = jax.jit(jax.hessian(lambda x, a, k, loss=loss: jnp.mean(loss.values(x, a, k))), compiler_options=QUICKLY)
            for _ in range(25):
                x = rng.normal(size=(classes, FEATURES)) * 10 ** rng.uniform(-1.5, 1)
                a = np.asarray(cut(rng.normal(size=(SLOTS, FEATURES)) * 3))
                data = np.asarray(hessian(x, a, rng.integers(0, classes, SLOTS))).reshape(x.size, x.size)
                beta, weight = rng.choice([0.0, 0.7]), 10 ** rng.uniform(-1, 1)
                free = beta * np.diag((2 - 6 * x**2).ravel() / (1 + x.ravel() ** 2) ** 3)
                curvature = Curvature(weight + beta / 2, loss.smoothness(1.0), beta)
                step = 10 ** rng.uniform(-2, 0) * 2 / curvature.highest
                norm = np.linalg.norm(np.eye(x.size) - step * (data + free + curvature.weight * np.eye(x.size)), 2)
                tightest = max(tightest, norm / contraction(curvature, step))
                assert norm <= contraction(curvature, step) * (1 + 1e-12)
                extremes = np.array([curvature.lowest, curvature.highest])
                assert np.abs(1 - step * extremes).max() == pytest.approx(contraction(curvature, step))
    assert tightest > 0.99


def test_contraction_of_numbers_and_of_arrays_agree():
    curvature = Curvature(0.3, 0.5, 0.2)
    steps = [0.01, 0.5, 1.3, 2.0, 5.0]
    expected = [contraction(curvature, step) for step in steps]
    np.testing.assert_allclose(contraction(curvature, jnp.array(steps)), expected, rtol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 0.01, 0.1, 1.0, 2.5, 9.0])
@pytest.mark.parametrize("smoothness", [0.25, 0.5, 2.0])
@pytest.mark.parametrize("beta", [0.0, 0.02])
def test_a_step_size_that_expands_is_refused_and_the_one_named_works(weight, smoothness, beta):
    curvature = Curvature(weight + beta / 2, smoothness, beta)
    require_contraction(curvature, 2 / curvature.highest)
    with pytest.raises(ConfigError, match=r"local\.step_size") as error:
        require_contraction(curvature, 2.01 / curvature.highest)
    named = float(re.search(r"use at most ([\d.e-]+?)\.$", str(error.value))[1])
    require_contraction(curvature, named)
    require_contraction(curvature, named / 10)
    assert named > 0.998 * 2 / curvature.highest


@pytest.mark.parametrize(("weight", "beta"), [(0.0, 0.1), (0.2, 0.5)])
def test_a_non_convex_local_problem_is_refused_at_every_step_size(weight, beta):
    for step in (1e-6, 0.1):
        with pytest.raises(
            ConfigError, match=r"needs at least problem\.beta/2 = .*raise algorithm\.rho or lower problem\.beta"
        ):
            require_contraction(Curvature(weight, 0.5, beta), step)


@pytest.mark.parametrize("steps", [1, 2, 10, 200])
def test_float32_bounds_are_those_of_exact_arithmetic(steps):
    """Also where c is close to 1, where the closed form of the geometric sum would lose digits."""
    rng = np.random.default_rng(steps)
    weight = (10 ** rng.uniform(-6, 1, 500)).astype(np.float32)
    step = (np.where(rng.random(500) < 0.5, 1.0, 10 ** rng.uniform(-4, 0, 500)) * 2 / (weight + 0.25)).astype(np.float32)
    w, eta = weight.astype(float)[:, None], step.astype(float)[:, None]
    c = np.maximum(np.abs(1 - eta * w), np.abs(1 - eta * (w + 0.25)))
    powers = np.arange(steps)
    found = bounds.contractive(1.0, Curvature(jnp.asarray(weight), 0.25), jnp.asarray(step), steps, jnp.float32(10))
    np.testing.assert_allclose(found, step / 10.0 * (c**powers).sum(axis=1), rtol=3e-5)
    found = bounds.linearised(1.0, jnp.asarray(weight), jnp.asarray(step), steps, jnp.float32(10))
    np.testing.assert_allclose(found, step / 10.0 * np.abs(((1 - eta * w) ** powers).sum(axis=1)), rtol=3e-5)


def test_bounds_in_closed_form():
    curvature = Curvature(10.0, 0.25)
    kappa = (1 - 10 * 0.04) ** 7
    assert float(bounds.linearised(0.5, 10.0, 0.04, 7, 100)) == pytest.approx((1 - kappa) * 0.5 / (10 * 100))
    c = max(abs(1 - 0.04 * 10), abs(1 - 0.04 * 10.25))
    assert float(bounds.contractive(0.5, curvature, 0.04, 7, 100)) == pytest.approx(0.04 * 0.5 / 100 * (1 - c**7) / (1 - c))
    assert bounds.one_pass(0.5, 0.04, 10) == pytest.approx(0.04 * 0.5 / 10)
    assert bounds.certified(0.5, Curvature(10.0, 0.25, 0.5), 0.1, 100) == pytest.approx((0.5 / 100 + 0.2) / 9.75)
    assert bounds.every_step(0.5, 100) == pytest.approx(0.005)
    assert float(bounds.batch_clipped(0.5, curvature, 0.04, 7)) == pytest.approx(2 * 0.5 / 10 * (1 - kappa))
    assert float(bounds.batch_clipped(0.5, curvature, 0.04, 10_000)) == pytest.approx(2 * 0.5 / 10)


def test_a_subgradient_of_the_penalty_in_the_local_steps_breaks_the_contraction():
    """Why penalty_by="subgradient" is refused under contraction: the step jumps at zero, so close points can move apart."""
    local, gamma, points = LocalPlan(1, 0, 0.5), 0.1, (jnp.full((2, 1), 1e-4), jnp.full((2, 1), -1e-4))
    examples = Examples(jnp.zeros((1, 1, 1)), jnp.zeros((1, 1), jnp.int32), jnp.array([1]), jnp.int32(0))

    def distance(by: str) -> float:
        problem = Problem(softmax(), penalties.l1(gamma), penalty_by=by)
        ends = [solve(problem, local, examples, x, 0.0, 0.0, jnp.float32(0.5), jax.random.key(0))[0] for x in points]
        return float(jnp.abs(ends[0] - ends[1]).max())

    before = 2e-4
    assert distance("prox") <= before * (1 + 1e-5), "the smooth part alone does not expand"
    assert distance("subgradient") > 100 * before, "with the subgradient in it, it does"
