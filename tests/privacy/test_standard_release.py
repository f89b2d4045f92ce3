"""Means and deviations as one noised release: the bound, the noise, the ledger, and the model that comes back."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedpdm.config import load_config
from fedpdm.data.prepare import build_federation, prepare_rows
from fedpdm.data.schema import Category, Number, Schema, to_toml
from fedpdm.data.standard import Standard
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.errors import ConfigError
from fedpdm.privacy.accounting import gdp_mu
from fedpdm.privacy.first_release import SAMPLING, combined
from fedpdm.privacy.ledger import Ledger
from fedpdm.privacy.standard_release import (
    columns_of,
    means_release,
    moments_sensitivity,
    release_moments,
    row_moments,
    standard_from,
)
from fedpdm.runs.folder import read_models
from fedpdm.setup.build import build_setup
from fedpdm.setup.resolve import resolve
from fedpdm.training import train

NAMES = ("age", "dose", "sex=f", "sex=m", "ward=a", "ward=b", "ward=c", "bias")


def random_rows(rng, count):
    """Encoded rows: numbers in [0, 1], often at a bound, and one indicator per word, or none for a word that is missing."""
    numbers = np.where(rng.random((count, 2)) < 0.5, rng.integers(0, 2, (count, 2)), rng.random((count, 2)))
    blocks = [np.eye(size + 1)[rng.integers(0, size + 1, count)][:, :size] for size in (2, 3)]
    return np.column_stack([numbers, *blocks, np.ones(count)]).astype(np.float32)


def largest_change(mean, trials=400, slots=12):
    """How far adding one row moves `mean(rows, slots)`, at most, over random tables with an empty slot."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(trials):
        rows = random_rows(rng, int(rng.integers(2, slots)))
        worst = max(worst, float(np.linalg.norm(mean(rows, slots) - mean(rows[:-1], slots))))
    return worst


def test_a_row_moves_the_moments_by_no_more_than_the_bound_and_the_bound_is_tight():
    bound = moments_sensitivity(NAMES) / 12
    worst = largest_change(lambda rows, slots: row_moments(rows.astype(float), NAMES).sum(axis=0) / slots)
    assert 0.999 * bound < worst <= bound * (1 + 1e-9)


def test_dividing_by_the_number_of_rows_breaks_the_bound():
    """The control: the same sums over a count that is private itself."""
    bound = moments_sensitivity(NAMES) / 12
    assert largest_change(lambda rows, slots: row_moments(rows.astype(float), NAMES).mean(axis=0)) > 1.5 * bound


def test_columns_that_were_not_cut_break_the_bound_and_are_cut():
    rows = random_rows(np.random.default_rng(0), 3)
    rows[0, 0] = 1e6
    assert np.linalg.norm(row_moments(rows, NAMES), axis=1).max() <= moments_sensitivity(NAMES) + 1e-6
    assert columns_of(NAMES) == ([0, 1], [[2, 3], [4, 5, 6]])


def test_the_noise_of_the_release_is_what_its_multiplier_says():
    rng = np.random.default_rng(3)
    clients = [random_rows(rng, size) for size in (30, 200)]
    slots, z, release = np.array([30.0, 200.0]), 4.0, means_release(NAMES)
    shares = slots**2 / (SAMPLING * slots + z**2 * release.size)  # by precision
    shares /= shares.sum()
    exact = np.average([row_moments(rows.astype(float), NAMES).mean(axis=0) for rows in clients], axis=0, weights=shares)
    draws = np.array([release_moments(clients, slots, NAMES, z, seed).means for seed in range(600)]) - exact
    expected = float(np.linalg.norm(shares * z * moments_sensitivity(NAMES) / slots))
    assert release_moments(clients, slots, NAMES, z, 0).noise == pytest.approx(expected)
    assert draws.std() == pytest.approx(expected, rel=0.05)
    assert abs(draws.mean()) < 5 * expected / draws.size**0.5


def test_no_client_makes_the_released_means_worse_than_without_it():
    """Error of the means, sampling and noise, for clients of 20 to 20,000 rows; shares by rows are the control."""
    sizes, z, release = np.geomspace(20, 20_000, 7), 20.0, means_release(NAMES)

    def error(kept: np.ndarray, by_rows: bool) -> float:
        sigmas = z * release.bound / kept
        parts = np.eye(len(kept))  # the mean of unit vectors is the clients' shares
        shares = kept / kept.sum() if by_rows else combined(release, list(parts), kept, sigmas).means
        return float((shares**2 * (SAMPLING * release.bound**2 / kept + release.size * sigmas**2)).sum())

    gains = {way: [error(np.delete(sizes, k), way) - error(sizes, way) for k in range(7)] for way in (False, True)}
    assert min(gains[False]) > 0
    assert min(gains[True]) < 0


def test_without_noise_the_standard_is_that_of_the_rows():
    rows = random_rows(np.random.default_rng(1), 4000)
    moments = release_moments([rows], np.array([4000.0]), NAMES, 1e-9, 0)
    standard = standard_from(moments, NAMES)
    np.testing.assert_allclose(standard.centre[:-1], rows[:, :-1].mean(axis=0), atol=1e-4)
    mapped = standard.apply(rows)
    np.testing.assert_allclose(mapped[:, :-1].std(axis=0) * (len(NAMES) - 1) ** 0.5, 1.0, rtol=1e-2)
    assert np.mean(np.sum(mapped[:, :-1] ** 2, axis=1)) == pytest.approx(1.0, rel=1e-2)


@pytest.fixture(scope="module")
def private_run(tmp_path_factory):
    """A small private run by the preset, with its folder and simulation."""
    folder = tmp_path_factory.mktemp("private")
    rng = np.random.default_rng(0)
    age, sex, site = rng.uniform(20, 90, 900), rng.choice(["f", "m"], 900), rng.choice(["a", "b", "c"], 900, p=[0.7, 0.2, 0.1])
    ill = np.where(age / 20 + (sex == "m") + rng.normal(size=900) > 3.5, "yes", "no")
    lines = [",".join(map(str, row)) for row in zip(age.round(1), sex, site, ill, strict=True)]
    (folder / "t.csv").write_text("\n".join(["age,sex,site,ill", *lines]))
    columns = {"age": Number(low=0, high=120), "sex": Category(levels=["f", "m"])}
    (folder / "s.toml").write_text(to_toml(Schema(label="ill", classes=["no", "yes"], client="site", columns=columns)))
    names = {"data.name": folder / "t.csv", "data.schema_file": folder / "s.toml"}
    settings = [f"{key}={json.dumps(str(path))}" for key, path in names.items()]
    config = load_config("private-table", [*settings, "data.partition=column", "privacy.epsilon=3.0", "rounds.total=4"])
    federation = build_federation(config, progress=False)
    finished = train(config, folder / "run", federation=federation)
    simulation = build_simulation(config, federation)
    list(simulation.run())
    return config, federation, simulation, folder / "run", finished.summary


def test_the_release_is_on_the_ledger_and_all_of_it_is_the_budget(private_run):
    config, _, simulation, folder, summary = private_run
    with Ledger(folder / "ledger.sqlite") as ledger:
        rows = [row for row in ledger.rows() if row.client == "client-0"]
    costs = [(row.sensitivity / row.sigma) ** 2 for row in rows]
    assert [row.mechanism_note for row in rows].count("means and deviations") == 1
    assert sum(costs) == pytest.approx(gdp_mu(3.0, 1e-5) ** 2, rel=1e-6)
    first = next(cost for row, cost in zip(rows, costs, strict=True) if row.mechanism_note == "means and deviations")
    assert first / sum(costs) == pytest.approx(config.privacy.standard_share, rel=1e-6)
    assert summary["epsilon"] == pytest.approx(3.0, rel=1e-6)
    assert simulation.plan is not None


def test_training_rows_are_cut_and_the_saved_model_is_one_of_the_columns_as_they_were(private_run):
    config, federation, simulation, folder, _ = private_run
    seen = simulation.federation
    assert np.linalg.norm(seen.features, axis=2).max() <= 1 + 1e-6
    saved = read_models(Path(folder))["averaged_model"]
    rows = prepare_rows(config, federation.test_features, federation.feature_names)
    np.testing.assert_allclose(rows @ saved.T, seen.test_features @ simulation.averaged_model.T, atol=2e-3)


def test_a_table_without_a_schema_or_behind_a_map_is_refused(private_run):
    config, federation, *_ = private_run
    with pytest.raises(ConfigError, match=r"data\.standardise=false"):
        build_simulation(config, federation._replace(schema=None))


def test_the_bound_of_a_shared_support_does_not_come_from_rows(private_run):
    """A row that is longer than all others must not change the noise: standardised rows are cut to norm 1, which is public."""
    config, federation, *_ = private_run
    parts = {"compression": {"kind": "shared-randk", "uplink": 0.5}, "privacy": {"mode": "linearised"}}
    sparse = config.model_copy(update={name: getattr(config, name).model_copy(update=values) for name, values in parts.items()})
    standard = build_simulation(sparse, federation).federation
    short = standard._replace(features=np.asarray(standard.features) * np.float32(0.1))
    noise = []
    for seen in (standard, short):
        setup, plan = build_setup(resolve(sparse, seen), seen)
        assert plan is not None
        noise.append((setup.links.radius, plan.sensitivity(0.1, 100.0)))
    assert noise[0] == noise[1]


def test_all_rows_of_a_person_together_move_the_moments_by_no_more_than_the_bound_and_rows_that_count_fully_do():
    rng, slots, z = np.random.default_rng(2), np.array([12.0]), 1e-12
    bound, worst, control = moments_sensitivity(NAMES) / 12, 0.0, 0.0
    for _ in range(200):
        others, own = random_rows(rng, 5), np.repeat(random_rows(rng, 1), 4, axis=0)
        weights = np.concatenate([np.ones(5), np.full(4, 0.25)])
        with_them = release_moments([np.concatenate([others, own])], slots, NAMES, z, 0, [weights]).means
        without = release_moments([others], slots, NAMES, z, 0, [np.ones(5)]).means
        worst = max(worst, float(np.linalg.norm(with_them - without)))
        rows = release_moments([np.concatenate([others, own])], slots, NAMES, z, 0).means
        control = max(control, float(np.linalg.norm(rows - without)))
    assert 0.99 * bound < worst <= bound * (1 + 1e-6)
    assert control > 3 * bound


def test_a_folded_model_has_the_shrunken_scores_and_its_bias_does_not_shrink():
    rng = np.random.default_rng(3)
    rows = np.column_stack([rng.random((20, 3)), np.ones(20)]).astype(np.float32)
    model = rng.normal(size=(2, 4)).astype(np.float32)
    standard = Standard(np.float32([0.2, 0.4, 0.6, 0.0]), np.float32([0.5, 2.0, 1.0, 2.5]), True, 0.85)
    mapped = standard.apply(rows)
    wanted = 0.85 * mapped[:, :-1] @ model[:, :-1].T + mapped[:, -1:] * model[:, -1]
    np.testing.assert_allclose(standard.apply_in_use(rows) @ model.T, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rows @ standard.fold(model).T, wanted, rtol=1e-5, atol=1e-5)
