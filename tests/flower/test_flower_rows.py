"""A node's rows: each is read by itself, for any type of its column, and at most as many count as there are slots."""

import itertools
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from flower_kit import FEATURES, first_request, job_of, make_nodes, refused, spends
from typer.testing import CliRunner

import fedpdm.engines.flower.client.rows as rows_module
from fedpdm.cli.main import app
from fedpdm.data.encoding import encode
from fedpdm.data.schema import Category, Number, Schema, Text
from fedpdm.data.tables import read_table
from fedpdm.engines.flower.client import client, slots
from fedpdm.engines.flower.client.approve import approve
from fedpdm.engines.flower.client.client import answer
from fedpdm.engines.flower.client.node_data import ClientExamples, load_examples
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.client.rows import Places, Rows, rank_in_unit, read_arrays, read_rows, unit_numbers
from fedpdm.engines.flower.job import Job
from fedpdm.errors import DataError, UserError

SCHEMA = Schema(
    label="y",
    classes=["0", "1", "yes"],
    columns={
        "number": Number(low=0, high=10),
        "code": Category(levels=["0", "7", "1.5", "007", "true"]),
        "note": Text(length=400),
    },
)
CELLS: tuple[Any, ...] = (
    0,
    7,
    -0.0,
    1.5,
    True,
    None,
    math.nan,
    math.inf,
    1e300,
    "7",
    "7.0",
    "007",
    "x",
    "",
    "NA",
    "-0",
    "9" * 5000,  # Python reads no number with so many digits
    "two words, \N{SNOWMAN}",
)


def write(path: Path, rows: list[tuple[Any, ...]]) -> Path:
    """The rows as a program would write them: the type of a column is one that all of its cells have in common."""
    names = ("number", "code", "note", "y")
    if path.suffix == ".csv":
        lines = [",".join("" if cell is None else f'"{cell}"' for cell in row) for row in rows]
        path.write_text("\n".join([",".join(names), *lines]) + "\n")
    else:
        columns = {name: _typed([row[place] for row in rows]) for place, name in enumerate(names)}
        pl.DataFrame(columns).write_parquet(path) if path.suffix == ".parquet" else np.savez(path, **columns)
    return path


def _typed(cells: list[Any]) -> np.ndarray:
    if all(isinstance(cell, bool) for cell in cells):
        return np.array(cells, bool)
    if all(isinstance(cell, int) for cell in cells):
        return np.array(cells, np.int64)
    if all(cell is None or isinstance(cell, int | float) for cell in cells):
        return np.array([np.nan if cell is None else cell for cell in cells], np.float64)
    return np.array(["" if cell is None else str(cell) for cell in cells])


def apart(read: Any, path: Path, rows: list[tuple[Any, ...]]) -> list[int]:
    """Which rows are read otherwise among the others than alone."""
    whole, moved = read(write(path, rows), SCHEMA), []
    for place, row in enumerate(rows):
        one = read(write(path, [row]), SCHEMA)
        same = one.good[0] == whole.good[place] and (
            not one.good[0] or (one.labels[0] == whole.labels[place] and np.array_equal(one.features[0], whole.features[place]))
        )
        if not same:
            moved.append(place)
    return moved


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_no_row_changes_how_another_one_is_read(ending: str, tmp_path: Path) -> None:
    """One row can turn a column of numbers into one of words, and whole numbers into floats by a missing value."""
    draw = Random(0)
    for _ in range(60):
        rows = [tuple(draw.choice(CELLS) for _ in range(4)) for _ in range(draw.randint(2, 6))]
        assert not apart(read_rows, tmp_path / f"rows.{ending}", rows), rows


def test_a_type_that_decides_is_found(tmp_path: Path) -> None:
    """The control: `fedpdm.data.tables`, whose messages only the owner sees, reads by the column's type."""

    def by_type(path: Path, schema: Schema) -> Rows:
        try:
            found = encode(schema, read_table(path))
        except DataError:
            return Rows(np.zeros((9, 406)), np.zeros(9), np.zeros(9, bool))
        return Rows(found.features, found.labels, np.ones(len(found.labels), bool))

    for ending in ("parquet", "npz"):
        assert apart(by_type, tmp_path / f"rows.{ending}", [(3, 7, "a", 1), (4, 7, "b", 0), ("x", 7, "c", 0)]), ending


def test_a_label_of_minus_zero_takes_no_other_with_it(tmp_path: Path) -> None:
    """Of two numbers that are equal one had the other's word: one row with -0 made all rows with 0 lose their label."""
    for ending in ("csv", "parquet", "npz"):
        found = read_rows(write(tmp_path / f"rows.{ending}", [(1, 7, "a", -0.0), (2, 7, "b", 0), (3, 7, "c", 1)]), SCHEMA)
        assert found.labels[1:].tolist() == [0, 1], ending
        assert found.good[1:].all()


def test_characters_that_are_none_damage_their_own_cell(tmp_path: Path) -> None:
    """An array of words may store any number as a character; polars would refuse the whole column."""
    plain = np.array(["a b", "c", "d"])
    for place, code in itertools.product(range(3), (0xD800, 0xDFFF, 0x110000, 0xFFFFFFFF)):
        words = plain.copy()
        words.view(np.uint32).reshape(3, -1)[place, 0] = code
        for kind in ("<U3", ">U3"):
            columns = {"number": np.ones(3), "code": np.array(["7"] * 3), "note": plain, "y": np.array(["0"] * 3)}
            odd = words if kind == "<U3" else words.byteswap().view(">U3")
            np.savez(tmp_path / "rows.npz", **columns | {"note": odd})
            found = read_rows(tmp_path / "rows.npz", SCHEMA)
            np.savez(tmp_path / "rows.npz", **columns)
            others = np.arange(3) != place
            np.testing.assert_array_equal(found.features[others], read_rows(tmp_path / "rows.npz", SCHEMA).features[others])


def test_the_type_of_an_array_says_nothing(tmp_path: Path) -> None:
    """Arrays of any type with the same numbers are the same rows; a value that is not a number damages its own row."""
    plain, seen = np.array([[0.5, 1], [2, 3], [0, 1]]), []
    for kind in (np.float64, np.float32, np.complex128, "U32", "S32"):
        for labels in (np.array([0, 1, 1]), np.array([0, 1, 1.5]), np.array(["0", "1", "x"])):
            np.savez(tmp_path / "rows.npz", features=plain.astype(kind), labels=labels)
            seen.append(read_arrays(tmp_path / "rows.npz", 2, 2))
    for found in seen:
        np.testing.assert_array_equal(found.features, plain.astype(np.float32))
        np.testing.assert_array_equal(found.labels[:2], [0, 1])
        assert found.good[:2].all()
    for odd in ("word", "", 1j):
        np.savez(tmp_path / "rows.npz", features=np.array([[0.5, 1], [2, 3], [odd, 1]]), labels=np.zeros(3))
        found = read_arrays(tmp_path / "rows.npz", 2, 2)
        np.testing.assert_array_equal(found.features[:2], plain[:2])
        assert not np.isfinite(found.features[2]).all()


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz", "svm"])
def test_a_file_without_rows_has_empty_slots(ending: str, tmp_path: Path) -> None:
    """The last row is one like every other: a node without it must not refuse."""
    path = tmp_path / f"rows.{ending}"
    path.write_text("") if ending == "svm" else write(path, [])
    schema = SCHEMA
    if ending == "svm":
        schema = Schema(label="label", classes=["0", "1"], columns={"x1": Number(low=0, high=1)})
    found = read_rows(path, schema)
    assert found.features.shape == (0, len(schema.feature_names))
    assert found.labels.shape == found.good.shape == (0,)


SLOTS = 5


def _job() -> Job:
    return job_of(slots=SLOTS)


def _examples(folder: Path, job: Job, rows: np.ndarray) -> ClientExamples:
    folder.mkdir(parents=True)
    node = make_nodes(folder, job=job)[0]
    np.savez(folder / "own-0.npz", features=rows, labels=np.zeros(len(rows)))
    return load_examples(node.source, job, node.state_dir)


def _rows(count: int) -> np.ndarray:
    return (np.random.default_rng(3).normal(size=(count, FEATURES)) / 9).astype(np.float32)


def _couple(monkeypatch: pytest.MonkeyPatch, order: list[int]) -> None:
    """Let the rows be dealt to the slots in this order."""
    monkeypatch.setattr(slots, "_order", lambda job, count: np.array(order))


def test_rows_beyond_the_slots_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lemma P: a row that is cut out changes one slot, under orders that are equally likely; beyond the slots none."""
    job, numbers = _job(), itertools.count()
    order = [3, 0, 4, 1, 2]
    for count in (SLOTS - 1, SLOTS, SLOTS + 2):
        rows = _rows(count)
        _couple(monkeypatch, order)
        whole = _examples(tmp_path / str(next(numbers)), job, rows)
        assert int(whole.beyond) == max(0, count - SLOTS)
        for k in range(count):
            _couple(monkeypatch, order)
            emptied = rows.copy()
            emptied[k] = np.nan
            empty = _examples(tmp_path / str(next(numbers)), job, emptied)
            changed = (empty.features != whole.features).any(axis=1)
            assert changed.sum() == (k < SLOTS), "the row's own slot, if it has one"
            if k < SLOTS:
                _couple(monkeypatch, [*order[:k], *order[k + 1 :], order[k]])  # the row's own slot goes to the last
            cut = _examples(tmp_path / str(next(numbers)), job, np.delete(rows, k, axis=0))
            changed = (cut.features != whole.features).any(axis=1)
            assert np.flatnonzero(changed).tolist() == ([order[k]] if k < SLOTS else [])
            assert cut.filled[changed].any() == (k < SLOTS < count), "replace-one, only if there were rows beyond"


def test_rows_that_keep_their_places_would_move_when_one_is_cut_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with a fixed order all rows behind the first get other slots, and in one pass other batches."""
    job = _job()
    first, again = (_examples(tmp_path / name, job, _rows(SLOTS)).features for name in ("one", "another"))
    orders = {tuple(slots._order(job, SLOTS)) for _ in range(20)}
    assert len(orders) > 10, "drawn anew"
    assert sorted(row.tobytes() for row in first) == sorted(row.tobytes() for row in again)
    _couple(monkeypatch, list(range(SLOTS)))
    whole = _examples(tmp_path / "whole", job, _rows(SLOTS)).features
    cut = _examples(tmp_path / "cut", job, _rows(SLOTS)[1:]).features
    assert (whole != cut).any(axis=1).sum() == SLOTS


def _first_answer(folder: Path, job: Job, rows: np.ndarray) -> tuple[Any, ...]:
    folder.mkdir()
    node = make_nodes(folder, job=job)[0]
    np.savez(folder / "own-0.npz", features=rows, labels=np.zeros(len(rows)))
    reply = answer(node, first_request(folder / "run", job))
    return refused(reply), len(reply.vectors), [(row.sensitivity, row.sigma) for row in spends(node)]


def test_the_server_does_not_learn_that_there_are_more_rows_than_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly as many rows as slots, and one more: the same answer. A node that refuses, as nodes did, is found."""
    job = _job()
    full, more = (_first_answer(tmp_path / str(count), job, _rows(count)) for count in (SLOTS, SLOTS + 1))
    assert full == more
    assert full[0] == ""
    honest = client.load_examples

    def refusing(*arguments: Any) -> ClientExamples:
        if (own := honest(*arguments)).beyond:
            raise DataError("more rows than slots")
        return own

    monkeypatch.setattr(client, "load_examples", refusing)
    full, more = (_first_answer(tmp_path / f"refusing {count}", job, _rows(count)) for count in (SLOTS, SLOTS + 1))
    assert full != more


def test_more_rows_than_slots_are_refused_where_their_owner_is(tmp_path: Path) -> None:
    job = _job()
    node = make_nodes(tmp_path, job=job)[0]
    np.savez(tmp_path / "own-0.npz", features=_rows(SLOTS + 2), labels=np.zeros(SLOTS + 2))
    with pytest.raises(UserError, match=f"2 rows are beyond its {SLOTS} slots"):
        approve(node.state_dir, job, load_policy(node.policy), node.source)
    config = f"client=0 state-dir='{node.state_dir}' policy='{node.policy}' data-path='{node.source.path}'"
    started = CliRunner().invoke(app, ["flower", "node", "--node-config", config])
    assert "2 rows are beyond" in str(started.exception)
    told = CliRunner().invoke(app, ["flower", "status", str(node.state_dir)]).output
    assert "2 rows beyond this job's slots" in told
    assert not (node.state_dir / "ledger.sqlite").exists(), "to look makes no ledger"


def test_a_map_that_fails_at_a_row_leaves_its_slot_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A map of a plugin may raise at an odd row; the server must not see where."""
    import fedpdm.data.prepare as prepare

    honest = prepare.map_row

    def raising(config: Any, row: np.ndarray, names: Any) -> np.ndarray:
        if row[0] < 0:
            raise RuntimeError("an odd row")
        return honest(config, row, names)

    def short(config: Any, row: np.ndarray, names: Any) -> np.ndarray:
        return honest(config, row, names)[: 1 if row[0] < 0 else None]

    rows = np.abs(_rows(3))
    rows[1, 0] *= -1
    for odd in (raising, short):
        monkeypatch.setattr(prepare, "map_row", odd)
        assert _examples(tmp_path / odd.__name__, _job(), rows).filled.sum() == 2


def test_only_rows_that_can_get_a_place_are_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples are those of the whole file, but memory depends on the slots: it cannot tell how many rows there are."""
    persons = SCHEMA.model_copy(update={"unit_column": "number"})
    draw, encoded = Random(1), []
    honest = rows_module.encode

    def counting(schema: Schema, table: Any, **options: Any) -> Any:
        encoded.append(table.rows)
        return honest(schema, table, **options)

    monkeypatch.setattr(rows_module, "encode", counting)
    for schema, places in ((SCHEMA, Places(3)), (persons, Places(2, 2))):
        for _ in range(10):
            rows = [(draw.randint(0, 3), 7, draw.choice("abc"), draw.choice([0, 1, "x"])) for _ in range(draw.randint(0, 12))]
            path = write(tmp_path / "rows.csv", rows)
            whole, part = read_rows(path, schema), read_rows(path, schema, places)
            assert encoded[-1] <= places.slots * (places.unit_rows + 1)
            seen = []
            for found in (whole, part):
                units = unit_numbers(found.units, len(found.good))
                counts = found.good & (units < places.slots) & (rank_in_unit(units, found.good) < places.unit_rows)
                seen.append((units[counts].tolist(), found.features[counts].tolist(), found.labels[counts].tolist()))
                assert found.beyond + max(0, units.max(initial=-1) + 1 - places.slots) == max(
                    0, len(set(whole.units or range(len(rows)))) - places.slots
                )
            assert seen[0] == seen[1]
