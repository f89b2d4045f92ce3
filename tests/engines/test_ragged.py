"""Clients of very unequal sizes without padding: the same run, at the size of the rows."""

import numpy as np
import pytest

from fedpdm.config import load_config
from fedpdm.data import federation_from_arrays, ragged
from fedpdm.data.federation import Federation
from fedpdm.data.ragged import Ragged, size_classes
from fedpdm.engines.simulation.build import build_simulation

SIZES = (400, 7, 60, 3, 1)


def unequal(monkeypatch: pytest.MonkeyPatch, stored_ragged: bool) -> Federation:
    """Clients of very unequal sizes; whether they are padded is a matter of size otherwise."""
    monkeypatch.setattr(ragged, "LEAST_BYTES", 0 if stored_ragged else 2**40)
    rng = np.random.default_rng(0)
    rows = [np.column_stack([rng.normal(size=(size, 4)), np.ones(size)]).astype(np.float32) / 3 for size in SIZES]
    arrays = [(x, (x[:, 0] + 0.2 * rng.normal(size=len(x)) > 0).astype(int)) for x in rows]
    return federation_from_arrays(arrays, *arrays[0], feature_names=[*"abcd", "bias"])


SETTINGS = {
    "table": ["data.clients=5", "rounds.total=20", "data.standardise=true"],
    "plain": ["data.clients=5", "rounds.participants=5", "rounds.total=20", "local.batch_size=0", "metrics.diagnose_every=10"],
}


@pytest.mark.parametrize("preset", SETTINGS)
def test_a_run_on_ragged_rows_is_that_on_padded_ones(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(preset, [*SETTINGS[preset], "data.name=own", "data.partition=iid"])
    found = []
    for stored_ragged in (True, False):
        federation = unequal(monkeypatch, stored_ragged)
        assert isinstance(federation.features, Ragged) is stored_ragged
        simulation = build_simulation(config, federation)
        assert (simulation.window.data.starts is not None) is stored_ragged
        rows = list(simulation.run())
        assert "sign_rounds" in simulation.steadiness(), "a run that converges early has last rounds, too"
        found.append((simulation.model, rows[-1]["objective"], rows[-1]["stationarity"], federation.label_counts))
    (model, objective, measure, labels), (padded_model, padded_objective, padded_measure, padded_labels) = found
    np.testing.assert_allclose(model, padded_model, atol=2e-4)
    assert objective == pytest.approx(padded_objective, rel=1e-5)
    assert measure == pytest.approx(padded_measure, rel=0.05, abs=1e-6)
    np.testing.assert_array_equal(labels, padded_labels)


def test_one_gradient_of_ragged_clients_is_that_of_padded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel, which reads the rows where they are."""
    settings = ["data.name=own", "data.partition=iid", "data.clients=5", "rounds.participants=5", "rounds.total=6"]
    private = [
        "privacy.mechanism=sound",
        "privacy.mode=linearised",
        "privacy.epsilon=50",
        "local.batch_size=0",
        "data.radius=2",
    ]
    models = []
    for stored_ragged in (True, False):
        simulation = build_simulation(load_config("plain", [*settings, *private]), unequal(monkeypatch, stored_ragged))
        assert (simulation.window.data.starts is not None) is stored_ragged
        list(simulation.run())
        models.append(simulation.model)
    np.testing.assert_allclose(*models, atol=1e-5)
    assert np.abs(models[0]).max() > 0.1


def test_batches_of_ragged_clients_are_those_of_padded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["data.name=own", "data.partition=iid", "data.clients=5", "rounds.participants=2", "rounds.total=4"]
    models = []
    for stored_ragged in (True, False):
        simulation = build_simulation(load_config("plain", settings), unequal(monkeypatch, stored_ragged))
        list(simulation.run())
        models.append(simulation.model)
    np.testing.assert_array_equal(*models)


def test_parts_of_a_ragged_array_are_those_of_the_padded_one() -> None:
    rows = np.arange(24.0).reshape(12, 2)
    held = Ragged(rows, np.array([1, 8, 3]))
    padded = np.asarray(held)
    assert held.shape == padded.shape == (3, 8, 2)
    assert held.nbytes == rows.nbytes
    for key in (0, 2, slice(None), slice(1, 3), np.array([2, 0, 0]), (1, slice(2, 5)), (2, slice(None, 3)), (slice(None), 0)):
        np.testing.assert_array_equal(held[key], padded[key])


def test_size_classes_hold_every_client_in_few_rows() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        sizes = np.exp(rng.uniform(0, rng.uniform(1, 10), rng.integers(1, 300))).astype(int) + 1
        classes = np.array(size_classes(sizes))
        assert len(classes) <= 4
        assert classes[-1] == sizes.max()
        blocks = classes[np.searchsorted(classes, sizes)]
        assert (blocks >= sizes).all()
        assert blocks.sum() <= 2.5 * sizes.sum() + 10
