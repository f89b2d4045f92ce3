"""A large table is never in memory twice: not as columns and features, and not in two orders."""

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from fedpdm.config import load_config
from fedpdm.data.blocks import keep_rows
from fedpdm.data.custom import load_custom
from fedpdm.data.encoding import encode
from fedpdm.data.schema_inference import infer_schema
from fedpdm.data.tables import table_from_columns

ROWS = 40_000
VARIABLE = "_RJEM_MALLOC_CONF"


def mixed_columns(rows=ROWS):
    rng = np.random.default_rng(0)
    columns = {f"x{place}": rng.normal(size=rows) for place in range(12)}
    columns["x3"][::7] = np.nan
    columns |= {f"c{place}": np.array(["red", "green", "blue", "grey"])[rng.integers(0, 4, rows)] for place in range(4)}
    columns |= {"site": np.array(["a", "b", "c"])[rng.choice(3, rows, p=[0.7, 0.25, 0.05])]}
    label = np.where(columns["x0"] + rng.logistic(size=rows) > 0, "yes", "no").astype(object)
    label[::11] = None
    return columns | {"y": label}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_from_columns_to_rows_the_features_are_in_memory_once(kind, tmp_path):
    # NumPy reports its arrays to tracemalloc, so the bytes are counted and no other process matters
    pl = pytest.importorskip("polars")
    path = tmp_path / f"table.{kind}"
    frame = pl.DataFrame({name: values.tolist() for name, values in mixed_columns().items()})
    frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
    data = load_config("table", [f"data.name={path}", "data.label=y", "data.partition=column", "data.client_column=site"]).data
    load_custom(data)  # what is loaded once, such as modules, is not counted
    tracemalloc.start()
    dataset = load_custom(data).dataset
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    encoded = 4 * ROWS * len(dataset.feature_names)
    column = 8 * ROWS  # a column of numbers while it is encoded, and the labels, clients and places of rows
    assert peak < 1.25 * encoded + 8 * column < 2 * encoded
    assert dataset.features.base is None  # rows that are not kept are given back
    assert dataset.features.flags.c_contiguous


def test_a_table_that_is_consumed_gives_the_same_rows_and_keeps_no_column():
    kept, consumed = table_from_columns(mixed_columns(997)), table_from_columns(mixed_columns(997))
    schema, _ = infer_schema(kept, "y", "site")
    expected, found = encode(schema, kept), encode(schema, consumed, consume=True)
    np.testing.assert_array_equal(found.features, expected.features)
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.clients.places, expected.clients.places)
    assert found.notes == expected.notes
    assert not consumed.columns
    assert kept.columns


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 100])
def test_rows_that_move_up_are_those_that_indexing_gives(rows):
    array = np.random.default_rng(rows).normal(size=(101, 3))
    places = np.sort(np.random.default_rng(rows).permutation(101)[:rows])
    expected = array[places]
    np.testing.assert_array_equal(keep_rows(array.copy(), places), expected)
    np.testing.assert_array_equal(keep_rows(np.vstack([array, array])[:101], places), expected)  # a view


@pytest.mark.parametrize("chosen", [None, "dirty_decay_ms:9"])
def test_polars_gives_memory_back_also_below_a_process_that_uses_polars(chosen):
    pytest.importorskip("polars")
    below = f"import fedpdm, os; print(os.environ[{VARIABLE!r}])"
    code = f"import polars, subprocess, sys; subprocess.run([sys.executable, '-c', {below!r}], check=True)"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {VARIABLE: chosen} if chosen else {}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    # the last word counts; what a person chose stays
    assert done.stdout.strip().endswith(chosen or "dirty_decay_ms:0,muzzy_decay_ms:0")
