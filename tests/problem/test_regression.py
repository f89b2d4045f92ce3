"""Numbers, counts and quantiles: the optimum of the federation is that of statsmodels, slopes are those of the values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm

from fedpdm.choices import LOSSES
from fedpdm.config import load_config
from fedpdm.data import federation_from_arrays
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.errors import ConfigError, DataError
from fedpdm.problem import huber, poisson, quantile, squared

SIZES = (60, 150, 400, 900)
NUMBERS = [row.name for row in LOSSES.values() if row.target == "number"]
EXACT = ["problem.gamma=0.0", "problem.penalty=none", "metrics.diagnose_every=1", "rounds.tolerance=1e-10", "rounds.total=300"]


pytestmark = pytest.mark.usefixtures("quick_compilation")


def rows(seed=0, columns=3, sizes=SIZES):
    """Clients of different sizes and different rows, a bias at the end."""
    rng = np.random.default_rng(seed)
    each = [rng.normal(0.2 * place, 1, (size, columns)) @ (np.eye(columns) + 0.4) for place, size in enumerate(sizes)]
    return [np.column_stack([part, np.ones(len(part))]) for part in each], rng


def dealt(features, labels, number=True):
    ends = np.cumsum([len(part) for part in features])[:-1]
    arrays = list(zip(features, np.split(labels, ends), strict=True))
    names = [f"x{i}" for i in range(features[0].shape[1] - 1)] + ["bias"]
    return federation_from_arrays(arrays, *arrays[0], feature_names=names, number=number)


def config_for(federation, *settings):
    return load_config("table", [f"data.clients={federation.clients}", *settings])


def trained(federation, loss, *settings):
    """The model of the preset "table", on the features as they are."""
    simulation = build_simulation(config_for(federation, f"problem.loss={loss}", *EXACT, *settings), federation)
    for _ in simulation.run():
        pass
    assert simulation.converged
    standard = simulation.federation.standard
    return standard.fold(simulation.model) if standard else simulation.model


def linear_case():
    features, rng = rows()
    table = np.concatenate(features)
    y = table @ [1.0, -0.5, 0.25, 2.0] + rng.standard_t(4, len(table))
    low, high = y.min(), y.max()
    return features, table, (y - low) / (high - low)


def test_the_linear_model_is_that_of_statsmodels():
    features, table, y = linear_case()
    np.testing.assert_allclose(trained(dealt(features, y), "squared")[0], sm.OLS(y, table).fit().params, rtol=1e-3)


def test_the_huber_model_is_that_of_statsmodels():
    features, table, y = linear_case()
    best = sm.RLM(y, table, M=sm.robust.norms.HuberT(1.345)).fit(update_scale=False, tol=1e-10)
    found = trained(dealt(features, y), "huber", f"problem.huber_threshold={1.345 * best.scale}")
    np.testing.assert_allclose(found[0], best.params, rtol=1e-3)


def test_a_quantile_is_that_of_statsmodels():
    """Up to the smoothing, on rows that leave the quantile no gap."""
    features, rng = rows(sizes=(1500, 2500, 4000))
    table = np.concatenate(features)
    y = table @ [1.0, -0.7, 0.5, 2.0] + rng.normal(0, 0.2, len(table))
    y = (y - y.min()) / np.ptp(y)
    best = sm.QuantReg(y, table).fit(q=0.7, p_tol=1e-9, max_iter=5000).params
    found = trained(dealt(features, y), "quantile", "problem.quantile=0.7", "problem.quantile_smoothing=0.001")
    np.testing.assert_allclose(found[0], best, rtol=1e-3)


def test_the_poisson_model_is_that_of_statsmodels():
    features, rng = rows()
    table = np.concatenate(features)
    counts = rng.poisson(np.exp(table @ [0.3, -0.2, 0.1, 1.0])).astype(float)
    best = sm.GLM(counts, table, family=sm.families.Poisson()).fit(tol=1e-12).params
    found = trained(dealt(features, counts / counts.max()), "poisson")[0].astype(float)
    found[-1] += np.log(counts.max())
    np.testing.assert_allclose(found, best, rtol=1e-3)


def test_the_logistic_model_is_that_of_statsmodels():
    features, rng = rows()
    table = np.concatenate(features)
    y = (rng.random(len(table)) < 1 / (1 + np.exp(-(table @ [0.6, -0.5, 0.4, 0.7])))).astype(int)
    found = trained(dealt(features, y, number=False), "softmax")
    np.testing.assert_allclose(found[1] - found[0], sm.Logit(y, table).fit(disp=0).params, rtol=1e-3)


@pytest.mark.parametrize("name", NUMBERS)
def test_the_gradient_is_that_of_the_value_and_keeps_its_bounds(name):
    """Unclipped by autodiff; clipped: no slope beyond the bound, and none that falls or rises faster than the smoothness."""
    loss = LOSSES[name].build()
    rng = np.random.default_rng(3)
    features, labels = jnp.asarray(rng.normal(size=(40, 3)), jnp.float32), jnp.asarray(rng.random(40), jnp.float32)
    x, weights = jnp.asarray(rng.normal(size=(1, 3)) * 0.3, jnp.float32), jnp.asarray(rng.random(40), jnp.float32)
    by_hand = jax.grad(lambda m: jnp.sum(weights * loss.values(m, features, labels)))(x)
    np.testing.assert_allclose(loss.gradient(x, features, labels, weights), by_hand, rtol=2e-4, atol=1e-5)

    clipped = LOSSES[name].factory()(clip=0.5)
    scores = jnp.linspace(-8, 8, 4001)
    slopes = clipped.slopes(scores[None], jnp.full(4001, 0.3), jnp.ones(4001))[0]
    assert float(jnp.abs(slopes).max()) <= clipped.gradient_bound(1.0) * (1 + 1e-6)
    rises = np.diff(np.asarray(slopes, float)) / np.diff(np.asarray(scores, float))
    assert rises.min() >= -1e-3
    assert rises.max() <= clipped.smoothness(1.0) * (1 + 1e-2)


def test_a_quantile_stays_what_it_is_when_it_is_clipped_and_its_value_is_the_pinball_loss_beyond_the_smoothing():
    scores, labels = jnp.array([[0.9, 0.1]]), jnp.array([0.5, 0.5])
    whole, half = (quantile(0.8, 0.01, clip).slopes(scores, labels, jnp.ones(2)) for clip in (1.0, 0.5))
    np.testing.assert_allclose(whole, [[0.2, -0.8]], atol=1e-6)
    np.testing.assert_allclose(half, whole / 2, atol=1e-6)
    values = quantile(0.8, 0.01).values(jnp.ones((1, 1)), scores.T, labels)
    np.testing.assert_allclose(values, [0.2 * 0.4, 0.8 * 0.4], atol=1e-6)


def test_squared_and_huber_agree_within_the_threshold_and_poisson_is_smooth_by_its_clip():
    rng = np.random.default_rng(0)
    x, a, y = jnp.ones((1, 2)) * 0.3, jnp.asarray(rng.random((20, 2))), jnp.asarray(rng.random(20))
    assert jnp.allclose(squared().gradient(x, a, y, jnp.ones(20)), huber(1.0).gradient(x, a, y, jnp.ones(20)))
    assert poisson(0.25).smoothness(2.0) == 1.25 * 4
    assert np.isinf(poisson().gradient_bound(1.0))
    assert np.isinf(squared().gradient_bound(1.0))


def test_a_loss_for_another_kind_of_label_is_refused_and_so_are_labels_outside_their_bounds():
    features, _, y = linear_case()
    with pytest.raises(ConfigError, match=r"problem\.loss=softmax does not go with a label that is a number: use 'squared'"):
        build_simulation(load_config("table", ["data.clients=4", "problem.loss=softmax"]), dealt(features, y))
    with pytest.raises(ConfigError, match=r"problem\.loss=poisson does not go with a label that is one of several classes"):
        build_simulation(
            load_config("table", ["data.clients=4", "problem.loss=poisson"]),
            dealt(features, (y > 0.5).astype(int), number=False),
        )
    with pytest.raises(ConfigError, match=r"problem\.class_weights is for classes, but problem\.loss=squared"):
        build_simulation(load_config("table", ["data.clients=4", "problem.class_weights=[1.0]"]), dealt(features, y))
    with pytest.raises(DataError, match=r"client 0, row \d+: label .* is outside \[0, 1\]"):
        dealt(features, 3 * y)
