"""A private basis: the bound of the second moment, its noise, the ledger, shared noise, and the model that comes back."""

import numpy as np
import pytest

import fedpdm
from fedpdm.config import load_config
from fedpdm.data.directions import Directions
from fedpdm.data.federation import federation_from_arrays
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import gdp_mu
from fedpdm.privacy.basis_release import basis_release, cut_rows, directions_from, pack, unpack
from fedpdm.privacy.first_release import secure_mean, simulated_release
from fedpdm.privacy.ledger import Ledger
from fedpdm.runs.folder import read_models
from fedpdm.runs.saved import load_model
from fedpdm.setup.resolve import resolve

WIDTH, SLOTS = 5, 12
RELEASE = basis_release(WIDTH, 1.0, 3)


def random_rows(rng, count):
    """Rows within and beyond the radius, many of them along one direction."""
    rows = rng.normal(size=(count, WIDTH)) * rng.choice([0.2, 1.0, 9.0], (count, 1))
    return np.where(rng.random((count, 1)) < 0.5, np.eye(WIDTH)[rng.integers(0, WIDTH, count)], rows).astype(np.float32)


def largest_change(mean, trials=300):
    """How far adding one row moves `mean(rows)`, at most, over random tables with an empty slot."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(trials):
        rows = random_rows(rng, int(rng.integers(2, SLOTS)))
        worst = max(worst, float(np.linalg.norm(mean(rows) - mean(rows[:-1]))))
    return worst


def test_a_row_moves_the_second_moment_by_no_more_than_the_bound_and_the_bound_is_tight():
    bound = RELEASE.bound / SLOTS
    assert 0.999 * bound < largest_change(lambda rows: RELEASE.mean(rows, SLOTS, None)) <= bound


def test_rows_that_are_not_cut_or_a_private_count_break_the_bound():
    """The controls: no cut to the radius; the number of rows as the divisor; off-diagonal entries sent twice."""
    bound = RELEASE.bound / SLOTS
    assert largest_change(lambda rows: pack(rows.T @ rows) / SLOTS) > 10 * bound
    assert largest_change(lambda rows: RELEASE.mean(rows, len(rows), None)) > 1.5 * bound
    twice = lambda rows: (cut_rows(rows).T @ cut_rows(rows))[np.triu_indices(WIDTH)] * 2 / SLOTS  # noqa: E731
    assert largest_change(twice) > 1.3 * bound


def test_all_rows_of_a_person_together_stay_within_the_bound():
    rng, bound, worst = np.random.default_rng(1), RELEASE.bound / SLOTS, 0.0
    for _ in range(100):
        others, own = random_rows(rng, 5), np.repeat(random_rows(rng, 1), 4, axis=0)
        weights = np.concatenate([np.ones(5), np.full(4, 0.25)])
        change = RELEASE.mean(np.concatenate([others, own]), SLOTS, weights) - RELEASE.mean(others, SLOTS, np.ones(5))
        worst = max(worst, float(np.linalg.norm(change)))
    assert 0.99 * bound < worst <= bound


@pytest.mark.parametrize(("honest", "shares"), [(None, 1.0), ([4, 4, 4], 4.0)])
def test_noise_is_what_the_multiplier_says_and_members_of_a_cohort_share_it(honest, shares):
    """A sum over H honest members has the noise z s in all; alone, every client has it."""
    rng, z, slots = np.random.default_rng(2), 3.0, np.full(3, 20.0)
    clients = [random_rows(rng, int(size)) for size in slots]
    exact = sum(RELEASE.mean(rows, 60, None) for rows in clients)
    found = [simulated_release(RELEASE, clients, slots, z, seed, None, honest) for seed in range(400)]
    draws = np.array([moments.means for moments in found]) - exact
    expected = z * (3 / shares) ** 0.5 / 60
    assert found[0].noise == pytest.approx(expected)
    assert draws.std() == pytest.approx(expected, rel=0.05)


def test_a_node_draws_exact_noise_after_the_spend():
    spent = []
    rows = random_rows(np.random.default_rng(3), 8)
    noised = secure_mean(RELEASE, rows, SLOTS, SLOTS, 4.0, lambda *cost: spent.append(cost))
    (sensitivity, sigma) = spent[0]
    assert sensitivity == pytest.approx(1 / SLOTS, rel=1e-6)
    assert sigma / sensitivity >= 4.0
    assert np.abs(noised - RELEASE.mean(rows, SLOTS, None)).max() < 8 * sigma
    with pytest.raises(RuntimeError):
        secure_mean(RELEASE, rows, SLOTS, SLOTS, 4.0, lambda *cost: (_ for _ in ()).throw(RuntimeError))


def test_without_noise_directions_are_those_of_the_second_moment():
    rows = cut_rows(np.random.default_rng(4).normal(size=(500, WIDTH)) * [0.5, 0.3, 0.2, 0.05, 0.01])
    moments = simulated_release(RELEASE, [rows], np.array([500.0]), 0.0, 0)
    np.testing.assert_allclose(unpack(moments.means, WIDTH), rows.T @ rows / 500, atol=1e-12)
    found = directions_from(moments, WIDTH, 3)
    _, vectors = np.linalg.eigh(rows.T @ rows / 500)
    cosines = np.abs(found.directions.T @ vectors[:, ::-1][:, :3]) / np.linalg.norm(found.directions, axis=0)[:, None]
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-3)
    assert np.mean(np.sum(found.apply(rows) ** 2, axis=1)) == pytest.approx(1, rel=1e-3)
    np.testing.assert_allclose(found.moment, rows.T @ rows / 500, atol=1e-9)


def test_any_directions_leave_rows_within_norm_one():
    """A hostile server may send any: a row is mapped by itself and cut."""
    wild = RELEASE.read(np.random.default_rng(5).normal(size=RELEASE.sent_size) * 1e6)
    assert isinstance(wild, Directions)
    assert np.linalg.norm(cut_rows(wild.apply(random_rows(np.random.default_rng(6), 50).astype(float))), axis=1).max() <= 1


def settings(*more: str) -> list[str]:
    return [
        "data.name=digits",
        "data.clients=5",
        "data.basis=private",
        "data.basis_size=12",
        "data.scaling=centred",
        "rounds.participants=0",
        "rounds.total=4",
        "rounds.all_first=false",
        "local.batch_size=0",
        "local.steps=2",
        "metrics.diagnose_every=0",
        "privacy.mechanism=sound",
        "privacy.epsilon=3.0",
        *more,
    ]


@pytest.fixture(scope="module")
def private_run(tmp_path_factory):
    config = load_config("plain", settings("problem.gamma=0.0", "problem.sparsity=0.2"))
    return fedpdm.train(config, tmp_path_factory.mktemp("basis") / "run")


def test_the_release_is_on_the_ledger_and_all_of_it_is_the_budget(private_run):
    with Ledger(private_run.folder / "ledger.sqlite") as ledger:
        rows = [row for row in ledger.rows() if row.client == "client-0"]
    costs = {row.mechanism_note: (row.sensitivity / row.sigma) ** 2 for row in rows}
    total = sum((row.sensitivity / row.sigma) ** 2 for row in rows)
    assert total == pytest.approx(gdp_mu(3.0, 1e-5) ** 2, rel=1e-6)
    share = private_run.config.privacy.standard_share
    assert costs["second moment of the features"] / total == pytest.approx(share, rel=1e-6)
    assert private_run.summary["epsilon"] == pytest.approx(3.0, rel=1e-6)


def test_the_saved_model_is_for_the_features_before_the_basis(private_run):
    """Predict, export and ONNX need nothing new; the released moment serves to remove weights of features."""
    assert private_run.model.shape == (10, 65)
    assert np.count_nonzero(private_run.model) == 130
    saved = load_model(private_run.folder)
    assert saved.feature_names[0] == "pixel 0,0"
    assert np.count_nonzero(saved.thinned(0.1).weights) == 65
    assert read_models(private_run.folder)["standard.moment"].shape == (65, 65)
    first = private_run.summary["path"][0]
    assert first["test_accuracy"] == pytest.approx(private_run.curves["test_accuracy"][1][-1], abs=2e-3)


def test_a_basis_that_cannot_be_private_is_refused():
    with pytest.raises(ConfigError, match="2000: at most 1000"):
        basis_release(2000, 1.0, 10)
    for wrong in ("data.radius=0.5", "metrics.intervals=true"):
        with pytest.raises(ConfigError, match="private"):
            load_config("plain", settings(wrong))
    rng = np.random.default_rng(0)
    arrays = [(cut_rows(rng.normal(size=(30, 4))).astype(np.float32), rng.integers(0, 2, 30)) for _ in range(3)]
    federation = federation_from_arrays(arrays, arrays[0][0], arrays[0][1], ["a", "b"])
    config = load_config("plain", settings("data.name=own", "data.clients=3", "data.scaling=none"))
    simulation = build_simulation(resolve(config, federation), federation)
    assert simulation.model.shape == (2, 4), "there are no more directions than features"
