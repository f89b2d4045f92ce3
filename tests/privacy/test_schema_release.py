"""A schema with noise: its sensitivity by brute force, its thresholds by trial, its cost in the run's budget."""

import json
import math

import numpy as np
import pytest

from fedpdm.config import load_config
from fedpdm.data.custom import load_custom
from fedpdm.data.prepare import build_federation
from fedpdm.data.schema import Category, Cost, Ignored, Number, parse_schema, to_toml
from fedpdm.data.tables import Table, table_from_columns
from fedpdm.engines.simulation.build import build_simulation
from fedpdm.errors import ConfigError, DataError
from fedpdm.privacy.schema_release import _discrete_laplace, cells_of, release_schema, thresholds_for


def random_rows(count: int, seed: int) -> list[tuple]:
    rng = np.random.default_rng(seed)
    words, odd = ["a", "b", "", "7", "x y"], [0.0, -3.5, 1e-9, -1e30, 2.0**20, None]
    return [
        (odd[rng.integers(6)], words[rng.integers(5)], words[rng.integers(5)], "yes" if rng.random() < 0.5 else "no")
        for _ in range(count)
    ]


def as_table(rows: list[tuple]) -> Table:
    return table_from_columns(dict(zip(("number", "word", "mixed", "label"), map(list, zip(*rows, strict=True)), strict=True)))


def l1_change(one: Table, other: Table, count=cells_of) -> int:
    """How far all counts of all columns are apart."""
    total = 0
    for name in one.columns:
        a, b = count(one, name, name == "label"), count(other, name, name == "label")
        total += int(np.abs(a.grid - b.grid).sum())
        total += sum(abs(a.words[word] - b.words[word]) for word in {*a.words, *b.words})
    return total


def test_one_row_moves_the_counts_by_one_per_column_and_a_careless_count_is_caught():
    for seed in range(40):
        rows = random_rows(12, seed)
        assert l1_change(as_table(rows), as_table(rows[1:])) == 4

    def twice(table, name, as_label):  # counts a missing value as a word, too
        cells = cells_of(table, name, as_label)
        cells.words["missing"] += int(cells.grid[-1])
        return cells

    changes = [l1_change(as_table(rows), as_table(rows[1:]), twice) for rows in (random_rows(12, s) for s in range(40))]
    assert max(changes) > 4


def test_neighbouring_counts_are_as_alike_as_epsilon_says_and_half_the_noise_is_caught():
    def ratio(scale: float) -> float:
        more, less = (np.array(_discrete_laplace([count] * 4000, scale)) for count in (11, 10))
        return float((more >= 11).mean() / (less >= 11).mean())

    epsilon, columns = 1.0, 1
    assert ratio(thresholds_for(columns, epsilon, 1e-6).scale) <= math.exp(epsilon) * 1.2
    assert ratio(thresholds_for(columns, epsilon, 1e-6).scale / 2) > math.exp(epsilon) * 1.2


def test_a_word_of_one_row_is_shown_with_probability_delta_at_most_and_a_low_threshold_is_caught():
    columns, delta = 3, 0.06
    limits = thresholds_for(columns, 1.0, delta)
    shown = np.array(_discrete_laplace([1] * 5000, limits.scale)) > limits.word
    allowed = delta / columns + 4 * math.sqrt(delta / columns / 5000)
    assert shown.mean() <= allowed
    low = np.array(_discrete_laplace([1] * 5000, limits.scale)) > 1 + limits.scale
    assert low.mean() > allowed


@pytest.fixture(scope="module")
def many() -> Table:
    rng = np.random.default_rng(0)
    rows = 4000
    return table_from_columns(
        {
            "age": rng.integers(18, 100, rows).astype(float),
            "owed": np.where(rng.random(rows) < 0.5, -1.0, 1.0) * rng.uniform(600, 1000, rows),
            "sex": rng.choice(["f", "m"], rows),
            "name": [f"person {row}" for row in range(rows)],
            "gap": [None if row % 2 else 5.0 for row in range(rows)],
            "birds": rng.choice(["1", "2-10", "more"], rows, p=[0.6, 0.2, 0.2]),
            "case_id": rng.integers(1000, 9999, rows).astype(float),
            "ill": rng.choice(["no", "yes"], rows),
            "site": rng.choice(["a", "b"], rows),
        }
    )


def test_what_many_rows_share_is_found_and_names_of_people_are_not(many):
    schema, notes = release_schema(many, "ill", "site", epsilon=1.0, delta=1e-6)
    assert schema.columns == {
        "age": Number(low=16, high=128),
        "owed": Number(low=-1024, high=1024),
        "sex": Category(levels=["f", "m"]),
        "name": Ignored(),
        "gap": Number(low=4, high=8, missing_column=True),
        "birds": Category(levels=["2-10", "more"]),
        "case_id": Ignored(),
    }
    assert schema.classes == ["no", "yes"]
    assert schema.client == "site"
    assert schema.cost == Cost(epsilon=1.0, delta=1e-6)
    assert any(note.startswith("name: ignored") for note in notes)
    assert "person" not in to_toml(schema)
    assert parse_schema(to_toml(schema)) == schema


@pytest.mark.parametrize(
    ("epsilon", "delta", "error", "words"),
    [
        (0.005, 1e-6, DataError, "the noise leaves 0 classes of .* at epsilon=0.005"),
        (-1.0, 1e-6, ConfigError, "epsilon=-1"),
        (1.0, 0.5, ConfigError, "delta=0.5 <="),
    ],
)
def test_budgets_that_do_not_work_are_said(many, epsilon, delta, error, words):
    with pytest.raises(error, match=words):
        release_schema(many, "ill", None, epsilon, delta)


def test_the_cost_of_the_schema_is_part_of_the_run_s_budget(many, tmp_path):
    import polars as pl

    path, schema = tmp_path / "many.parquet", tmp_path / "s.toml"
    pl.DataFrame(list(many.columns.values())).write_parquet(path)
    schema.write_text(to_toml(release_schema(many, "ill", "site", 1.0, 1e-6).schema))
    settings = [f"data.name={json.dumps(str(path))}", f"data.schema_file={json.dumps(str(schema))}", "data.partition=column"]
    settings += ["privacy.mechanism=sound", "rounds.total=3"]
    config = load_config("private-table", [*settings, "privacy.epsilon=3.0"])
    federation = build_federation(config, progress=False)
    plan = build_simulation(config, federation).plan
    assert plan is not None
    assert (plan.epsilon, plan.delta) == (pytest.approx(2.0), pytest.approx(9e-6))
    assert plan.sentence().startswith("Differential privacy with epsilon = 3 and delta = 1e-05")
    assert plan.sentence(0.5).startswith("Differential privacy with epsilon = 1.5 ")
    for wrong in (["privacy.epsilon=1.0"], ["privacy.epsilon=3.0", "privacy.relation=replace-one"]):
        with pytest.raises(ConfigError, match="inferred from the rows with epsilon=1"):
            build_simulation(load_config("private-table", [*settings, *wrong]), federation)
    assert load_custom(config.data, private=True).schema.cost is not None


def noiseless(counts: list[int], scale: float) -> list[int]:
    del scale
    return counts


def test_one_label_does_not_change_how_others_are_read() -> None:
    """A list of numbers with one word in it: the word is one more class, and the classes of the others keep their names."""
    labels: list = [1.0, 2.0] * 500
    plain = table_from_columns({"x": [0.5, 3.0] * 500, "label": labels})
    mixed = table_from_columns({"x": [0.5, 3.0] * 500 + [1.0], "label": [*labels, "none of them"]})
    found = [release_schema(table, "label", None, 1.0, 1e-6, noiseless).schema for table in (plain, mixed)]
    assert found[0] == found[1]
    assert found[0].classes == ["1", "2"]
    assert l1_change(plain, mixed) == 2, "one row, two columns"
    assert table_from_columns({"x": [True, None, 3, "a"]}).columns["x"].to_list() == ["true", None, "3", "a"]


def test_the_columns_of_a_libsvm_file_are_not_taken_from_its_rows(tmp_path) -> None:
    from fedpdm.data.tables import read_table

    rows = [f"{row % 2} 1:{row % 7} 2:0.5" for row in range(2000)]
    (tmp_path / "one.svm").write_text("\n".join(rows) + "\n")
    (tmp_path / "other.svm").write_text("\n".join([*rows, "1 1:3 9:4"]) + "\n")
    one, other = read_table(tmp_path / "one.svm"), read_table(tmp_path / "other.svm")
    assert set(one.columns) != set(other.columns), "the file's own columns tell the two apart"
    with pytest.raises(ConfigError, match="--features"):
        release_schema(one, "label", None, 4.0, 1e-6)
    found = [release_schema(table, "label", None, 4.0, 1e-6, noiseless, features=3).schema for table in (one, other)]
    assert found[0] == found[1]
    assert list(found[0].columns) == ["x1", "x2", "x3"]
    with pytest.raises(ConfigError, match="for LibSVM files"):
        release_schema(as_table(random_rows(9, 0)), "label", None, 1.0, 1e-6, features=3)
