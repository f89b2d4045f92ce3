"""A prox is the argmin of its docstring; the rest follows from identities."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedpdm.choices import PENALTIES
from fedpdm.errors import ConfigError
from fedpdm.problem.penalties import (
    box,
    elastic_net,
    group_lasso,
    l0,
    l1,
    l2,
    mcp,
    none,
    scad,
)

CASES = {
    "none": none(),
    "l1": l1(strength=0.7),
    "l1-off": l1(strength=0.0),
    "elastic-net": elastic_net(strength=0.8, mix=0.3),
    "l2": l2(strength=1.3),
    "mcp": mcp(strength=0.9, concavity=2.0),
    "mcp-steep": mcp(strength=2.0, concavity=0.5),
    "mcp-off": mcp(strength=0.0, concavity=2.0),
    "scad": scad(strength=0.6, concavity=3.7),
    "scad-steep": scad(strength=1.1, concavity=2.01),
    "scad-off": scad(strength=0.0, concavity=3.0),
    "l0": l0(strength=0.4),
    "l0-off": l0(strength=0.0),
    "group-lasso": group_lasso(strength=0.7),
    "box": box(lower=-0.5, upper=1.5),
    "box-half": box(lower=0.0, upper=math.inf),
    "box-point": box(lower=0.3, upper=0.3),
}
# With borders of strong convexity (0.5, 2, 2.7), and steps far beyond them.
STEPS = (1e-3, 0.1, 0.5, 1.0, 2.0, 2.7, 3.01, 4.7, 10.0, 100.0)
POINTS = np.concatenate([np.linspace(-5, 5, 41), np.random.default_rng(0).normal(scale=2, size=20)])


@pytest.fixture(scope="module", autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=CASES, ids=str)
def penalty(request):
    return CASES[request.param]


def objective(penalty, u, x, step):
    """h(u_i) + (u_i - x_i)² / (2 step) for every i; one coordinate is one problem."""
    return np.asarray(jax.vmap(penalty.value)(jnp.asarray(u))) + np.square(u - x) / (2 * step)


def worst_excess(penalty, steps=STEPS, points=POINTS):
    """How far the prox is above the best point of a fine grid, at worst; at most 0 for an argmin."""
    grid = np.union1d(np.linspace(-8, 8, 100_000), [0.0, 0.3])
    on_grid = np.asarray(jax.vmap(penalty.value)(jnp.asarray(grid)))
    worst = -math.inf
    for step in steps:
        found = objective(penalty, np.asarray(penalty.prox(jnp.asarray(points), step)), points, step)
        for x, at_prox in zip(points, found, strict=True):
            best = np.min(on_grid + np.square(grid - x) / (2 * step))
            worst = max(worst, (at_prox - best) / max(1.0, best))
    return worst


def test_every_penalty_of_the_table_has_a_case():
    assert {penalty.name for penalty in CASES.values()} == set(PENALTIES)
    assert all(name.startswith(penalty.name) for name, penalty in CASES.items())


def test_prox_beats_every_point_of_a_grid(penalty):
    assert worst_excess(penalty) <= 1e-12


@pytest.mark.parametrize("name", ["l1", "elastic-net", "l2", "mcp", "mcp-steep", "scad", "scad-steep", "l0"])
def test_grid_detects_a_wrong_threshold(name):
    right = CASES[name]
    wrong = right._replace(prox=lambda x, step: right.prox(x, step / 2))
    assert worst_excess(wrong, points=POINTS[::4]) > 1e-3


@pytest.mark.parametrize(
    ("name", "steps"),
    [("mcp", STEPS[5:]), ("mcp-steep", STEPS[3:]), ("scad", STEPS[6:]), ("scad-steep", STEPS[4:])],
)
def test_grid_detects_the_textbook_formula_at_large_steps(name, steps):
    """Firm thresholding at the largest step it is made for is not an argmin beyond it."""
    right = CASES[name]
    wrong = right._replace(prox=lambda x, step: right.prox(x, 0.999 / right.weak_convexity))
    assert worst_excess(wrong, steps, POINTS[::4]) > 1e-3


@pytest.mark.parametrize("name", ["mcp", "mcp-steep", "scad", "scad-steep", "l0"])
def test_of_two_minimisers_the_smaller_is_returned(name):
    """Bisection finds the jump; just below and above it, the two values are equally good."""
    penalty, step = CASES[name], 50.0
    jumped = [abs(penalty.prox(jnp.float64(x), step)) >= 0.99 * x for x in (0.1, 100.0)]
    assert jumped == [False, True]
    low, high = 0.1, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if penalty.prox(middle, step) >= 0.99 * middle else (middle, high)
    below, above = float(penalty.prox(low, step)), float(penalty.prox(high, step))
    assert below < above
    np.testing.assert_allclose(
        objective(penalty, np.array([below]), low, step),
        objective(penalty, np.array([above]), low, step),
        rtol=1e-9,
    )


def test_a_tie_goes_to_zero():
    assert l0(strength=2.0).prox(jnp.array([2.0, -2.0, 2.1]), 1.0).tolist() == [0.0, 0.0, 2.1]
    assert mcp(strength=1.0, concavity=1.0).prox(jnp.array([2.0, 2.1]), 4.0).tolist() == [0.0, 2.1]
    assert scad(strength=1.0, concavity=3.0).prox(jnp.array([8.0, 8.1]), 16.0).tolist() == [0.0, 8.1]


@pytest.mark.parametrize("step", [0.1, 1.0, 5.0])
def test_group_lasso_prox_beats_search_and_solver(step):
    rng = np.random.default_rng(1)
    penalty, x = group_lasso(strength=0.8), rng.normal(scale=1.5, size=(3, 6))

    def total(flat):
        u = flat.reshape(x.shape)
        return 0.8 * np.sum(np.sqrt(np.sum(u**2, axis=0))) + np.sum((u - x) ** 2) / (2 * step)

    u = np.asarray(penalty.prox(jnp.asarray(x), step))
    best = total(u.ravel())
    for scale in (1e-4, 1e-2, 1.0):
        for noise in rng.normal(scale=scale, size=(2000, *x.shape)):
            assert total((u + noise).ravel()) >= best
    solution = minimize(total, x.ravel(), method="L-BFGS-B", options={"maxiter": 2000})
    assert best <= solution.fun + 1e-12
    assert solution.fun <= best * (1 + 1e-4)


def test_group_lasso_keeps_or_drops_a_feature_for_all_classes():
    x = jnp.array([[3.0, 0.3], [4.0, 0.4]])
    np.testing.assert_allclose(group_lasso(strength=1.0).prox(x, 1.0), [[2.4, 0.0], [3.2, 0.0]])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (mcp(strength=0.7, concavity=1e12), l1(strength=0.7)),
        (scad(strength=0.7, concavity=1e12), l1(strength=0.7)),
        (elastic_net(strength=0.7, mix=1.0), l1(strength=0.7)),
        (elastic_net(strength=0.7, mix=0.0), l2(strength=0.7)),
        (group_lasso(strength=0.7), l1(strength=0.7)),
        (box(lower=-math.inf, upper=math.inf), none()),
        (l1(strength=0.0), none()),
        (l2(strength=0.0), none()),
        (mcp(strength=0.0), none()),
        (scad(strength=0.0), none()),
        (l0(strength=0.0), none()),
        (group_lasso(strength=0.0), none()),
    ],
    ids=lambda penalty: penalty.name,
)
def test_identities(left, right):
    x, gradient = jnp.asarray(POINTS), jnp.asarray(POINTS[::-1])
    np.testing.assert_allclose(left.value(x), right.value(x), atol=1e-9)
    for step in STEPS:
        np.testing.assert_allclose(left.prox(x, step), right.prox(x, step), atol=1e-9)
    np.testing.assert_allclose(
        left.subdifferential_distance(x, gradient), right.subdifferential_distance(x, gradient), atol=1e-9
    )


def test_box_prox_is_clip():
    np.testing.assert_array_equal(box(lower=-0.5, upper=1.5).prox(jnp.asarray(POINTS), 3.0), POINTS.clip(-0.5, 1.5))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("box")])
def test_prox_at_step_zero_is_identity(name):
    x = jnp.asarray(POINTS)
    np.testing.assert_array_equal(CASES[name].prox(x, 0.0), x)
    # L0 may still move the points below sqrt(2 step strength).
    np.testing.assert_allclose(CASES[name].prox(x, 1e-12), x, atol=1e-6)


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        (none(), 0.0),
        (l1(strength=2.0), 2 * (0.5 + 2 + 6)),
        (l2(strength=2.0), 0.25 + 4 + 36),
        (elastic_net(strength=2.0, mix=0.25), 0.25 * 17 + 0.75 * 40.25),
        (mcp(strength=1.0, concavity=3.0), (0.5 - 0.25 / 6) + (2 - 4 / 6) + 1.5),
        (scad(strength=1.0, concavity=3.0), 0.5 + (12 - 4 - 1) / 4 + 2),
        (l0(strength=2.0), 6.0),
        (group_lasso(strength=2.0), 2 * (math.hypot(0.5, 2) + 6)),
        (box(lower=-2, upper=6), 0.0),
        (box(lower=-2, upper=5.9), math.inf),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_value_matches_the_definition(penalty, expected):
    value = penalty.value(jnp.array([[0.5, 0.0], [-2.0, 6.0]]))
    assert value.shape == ()
    np.testing.assert_allclose(value, expected)


vectors = st.lists(st.floats(-10, 10), min_size=6, max_size=6).map(lambda v: np.array(v).reshape(2, 3))


@pytest.mark.parametrize("name", [name for name, penalty in CASES.items() if penalty.convex])
@settings(max_examples=30, deadline=None)
@given(x=vectors, y=vectors, step=st.floats(1e-3, 100))
def test_convex_prox_is_non_expansive(name, x, y, step):
    u, v = (np.asarray(CASES[name].prox(jnp.asarray(point), step)) for point in (x, y))
    assert np.linalg.norm(u - v) <= np.linalg.norm(x - y) + 1e-12


def test_weak_convexity_is_the_smallest(penalty):
    """h + c/2 x² has no negative second difference, and has one for any smaller c."""
    grid = np.linspace(-4, 4, 3201)
    value = np.asarray(jax.vmap(penalty.value)(jnp.asarray(grid)))
    finite = np.isfinite(value)
    grid, value = grid[finite], value[finite]

    def bends_down(c):
        return bool(np.any(np.diff(value + c / 2 * grid**2, 2) < -1e-10))

    c = penalty.weak_convexity
    assert penalty.convex == (c == 0)
    if math.isinf(c):
        assert bends_down(1e4)
    else:
        assert not bends_down(c)
    if 0 < c < math.inf:
        assert bends_down(0.99 * c)


@pytest.mark.parametrize("shape", [(61,), (61, 1)])
def test_distance_is_zero_at_the_prox(penalty, shape):
    x = jnp.asarray(POINTS).reshape(shape)
    for step in STEPS:
        u = penalty.prox(x, step)
        np.testing.assert_allclose(penalty.subdifferential_distance(u, (u - x) / step), 0, atol=1e-10)


def test_distance_agrees_with_directional_derivatives(penalty):
    """The subdifferential of a scalar function is [-h'(x; -1), h'(x; +1)], here by finite differences."""
    x, width = np.array([-3.0, -0.8, -0.5, -0.2, 0.0, 0.1, 0.3, 0.9, 1.3, 1.5, 4.0]), 1e-7
    below, here, above = (np.asarray(jax.vmap(penalty.value)(jnp.asarray(x + d))) for d in (-width, 0, width))
    inside = np.isfinite(here)
    x, below, here, above = (array[inside] for array in (x, below, here, above))
    left, right = (here - below) / width, (above - here) / width
    for gradient in (-2.0, -0.5, 0.0, 0.3, 1.0, 5.0):
        expected = np.maximum(np.maximum(left + gradient, -gradient - right), 0)
        found = penalty.subdifferential_distance(jnp.asarray(x), jnp.full(x.shape, gradient))
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if name != "box-point"])
def test_distance_is_positive_where_not_stationary(name):
    assert CASES[name].subdifferential_distance(jnp.array([1.0]), jnp.array([-9.0])) > 1.0


def test_distance_per_group():
    penalty = group_lasso(strength=1.0)
    x = jnp.array([[3.0, 0.0, 0.0], [4.0, 0.0, 0.0]])
    gradient = jnp.array([[-0.6, 3.0, 0.3], [0.2, -4.0, 0.4]])
    np.testing.assert_allclose(penalty.subdifferential_distance(x, gradient), [1.0, 4.0, 0.0], atol=1e-12)


def test_distance_outside_the_box_is_infinite():
    distance = box(lower=0.0, upper=1.0).subdifferential_distance(jnp.array([-1.0, 2.0]), jnp.zeros(2))
    assert jnp.all(jnp.isinf(distance))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_jit_and_vmap_agree_with_eager(penalty, dtype):
    x = jnp.asarray(np.random.default_rng(2).normal(scale=2, size=(5, 3, 4)), dtype)
    steps = jnp.asarray([0.1, 0.5, 1.0, 3.0, 30.0], dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"rtol": 1e-12, "atol": 1e-12}
    value, prox, distance = penalty.value, penalty.prox, penalty.subdifferential_distance
    eager = (
        jnp.stack([value(a) for a in x]),
        jnp.stack([prox(a, float(s)) for a, s in zip(x, steps, strict=True)]),
        jnp.stack([distance(a, a - 1) for a in x]),
    )
    found = jax.jit(lambda: (jax.vmap(value)(x), jax.vmap(prox)(x, steps), jax.vmap(distance)(x, x - 1)))()
    for one, other in zip(eager, found, strict=True):
        np.testing.assert_allclose(one, other, **tolerance)
    assert eager[1].dtype == found[1].dtype == x.dtype
    assert eager[1].shape == x.shape


def test_a_new_step_does_not_compile_again(penalty):
    traces = []

    @jax.jit
    def prox(x, step):
        traces.append(step)
        return penalty.prox(x, step)

    for step in STEPS:
        prox(jnp.asarray(POINTS), step)
    assert len(traces) == 1


def test_single_precision_stays_close_to_double(penalty):
    """Also at the steps next to the border of strong convexity, where the quotient is ill-conditioned."""
    border = 1 / penalty.weak_convexity if 0 < penalty.weak_convexity < math.inf else 1.0
    for step in (*STEPS, 0.99999 * border):
        x = np.float32(POINTS)
        with jax.enable_x64(False):
            single = penalty.prox(jnp.asarray(x), step)
            assert single.dtype == jnp.float32
        double = penalty.prox(jnp.asarray(np.float64(x)), step)
        for found in (single, double):
            assert np.all(np.isfinite(found))
        excess = objective(penalty, np.float64(single), np.float64(x), step) - objective(
            penalty, np.asarray(double), np.float64(x), step
        )
        # A bound like 0.3 is not a single-precision number: compare inside the box only.
        assert np.all(excess[np.isfinite(excess)] <= 1e-5 + 1e-6 / step)


def test_nan_stays_nan(penalty):
    x = jnp.array([[jnp.nan, 1.0]])
    for step in (0.1, 100.0):
        assert jnp.isnan(penalty.prox(x, step)).tolist() == [[True, False]]
    assert not jnp.all(penalty.subdifferential_distance(jnp.ones((1, 1)), jnp.full((1, 1), jnp.nan)) == 0)


@pytest.mark.parametrize("name", [name for name in PENALTIES if name not in {"none", "box"}])
@pytest.mark.parametrize("strength", [-1.0, math.nan, math.inf])
def test_strength_out_of_range(name, strength):
    with pytest.raises(ConfigError, match=rf"^Expected strength={strength} >= 0 .*use 0 for no penalty\.$"):
        PENALTIES[name].factory()(strength=strength)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("elastic-net", {"strength": 1.0, "mix": 1.5}, r"Expected mix=1.5 in \[0, 1\]; use 1 for the lasso"),
        ("elastic-net", {"strength": 1.0, "mix": math.nan}, "Expected mix=nan in"),
        ("mcp", {"strength": 1.0, "concavity": 0.0}, "Expected concavity=0.0 > 0 and finite; 3.0 is usual"),
        ("mcp", {"strength": 1.0, "concavity": math.inf}, "Expected concavity=inf > 0"),
        ("scad", {"strength": 1.0, "concavity": 2.0}, "Expected concavity=2.0 > 2 and finite; 3.7 is usual"),
        ("scad", {"strength": 1.0, "concavity": math.nan}, "Expected concavity=nan > 2"),
        ("box", {"lower": 1.0, "upper": 0.0}, "Expected lower=1.0 <= upper=0.0"),
        ("box", {"lower": math.nan, "upper": 0.0}, "Expected lower=nan <= upper=0.0"),
        ("box", {"lower": math.inf, "upper": math.inf}, "Expected lower=inf <= upper=inf"),
    ],
)
def test_other_values_out_of_range(name, arguments, message):
    with pytest.raises(ConfigError, match=message) as caught:
        PENALTIES[name].factory()(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PENALTIES.built_in)
def test_a_row_says_what_its_penalty_says_about_convexity(name):
    assert PENALTIES[name].build({"gamma": 1.0}).convex == PENALTIES[name].convex
