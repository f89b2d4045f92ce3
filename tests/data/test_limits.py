"""Small files that stand for gigabytes are refused before they are unpacked."""

import io
import zipfile

import numpy as np
import polars as pl
import pytest

from fedpdm.data.limits import MOST_COLUMNS, libsvm_shape, npz_bytes, npz_width, parquet_bytes
from fedpdm.data.tables import read_table
from fedpdm.errors import DataError


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch):
    monkeypatch.setenv("FEDPDM_MEMORY", "0.01")


def refuse(path):
    with pytest.raises(DataError, match=r"takes .* GB of memory once it is unpacked, and the limit is 0.01 GB"):
        read_table(path)


def test_an_npz_file_is_measured_by_its_headers(tmp_path):
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros((400_000, 4)), label=np.zeros(400_000))
    assert npz_bytes(tmp_path / "zeros.npz") == pytest.approx(16e6, rel=0.01)
    assert (tmp_path / "zeros.npz").stat().st_size < 1e5
    refuse(tmp_path / "zeros.npz")


def test_an_npz_header_that_claims_more_than_the_archive_holds_counts_as_it_claims(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 10)})
    with zipfile.ZipFile(tmp_path / "claim.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    refuse(tmp_path / "claim.npz")


def test_a_parquet_file_of_one_repeated_value(tmp_path):
    frame = pl.DataFrame({f"x{i}": pl.repeat(1.0, 300_000, eager=True) for i in range(6)})
    frame.write_parquet(tmp_path / "same.parquet")
    assert parquet_bytes(tmp_path / "same.parquet") >= 300_000 * 6 * 8 > 20 * (tmp_path / "same.parquet").stat().st_size
    refuse(tmp_path / "same.parquet")


def test_a_parquet_file_of_one_long_word(tmp_path):
    path = tmp_path / "word.parquet"
    pl.DataFrame(
        {"word": pl.repeat("x" * 2000, 20_000, dtype=pl.String, eager=True), "label": pl.repeat(1, 20_000, eager=True)}
    ).write_parquet(path)
    assert path.stat().st_size < 20_000 < 20_000 * 2000 <= parquet_bytes(path)
    refuse(path)
    pixels = pl.Series("image", np.zeros((2000, 30, 30), np.uint8))
    pl.DataFrame({"image": pixels, "lists": [[1] * 100] * 2000, "pairs": [{"file": b"x" * 10}] * 2000}).write_parquet(path)
    assert parquet_bytes(path) == 2000 * (3 * 8 + 900 * 8 + 100 * 8 + 10)


def test_a_libsvm_file_of_two_lines(tmp_path):
    path = tmp_path / "wide.svm"
    path.write_text("1 1:0.5 900000000:1\n0 2:0.5 # 7:comment\n")
    assert libsvm_shape(path) == (2, 900_000_001)
    refuse_columns(path, 900_000_001)
    path.write_text(f"1 1:0.5 {MOST_COLUMNS - 1}:1\n" * 50)
    refuse(path)
    path.write_text(f"1 {'9' * 40}:1\n")
    with pytest.raises(DataError, match="is no number of a column"):
        read_table(path)


def refuse_columns(path, count):
    with pytest.raises(DataError, match=f"it has {count} columns, and a table has at most {MOST_COLUMNS}"):
        read_table(path)


def test_few_rows_with_millions_of_columns_are_refused_although_they_would_fit(tmp_path, monkeypatch):
    """Columns cost time and memory of their own: 24 bytes took 6 GB under a limit of 2 GB, and more than two minutes."""
    monkeypatch.setenv("FEDPDM_MEMORY", "100")
    (tmp_path / "wide.svm").write_text("1 1:1 50000000:1\n0 2:1\n")
    refuse_columns(tmp_path / "wide.svm", 50_000_001)
    np.savez_compressed(tmp_path / "wide.npz", x=np.zeros((1, 300_000), np.int8), label=np.zeros(1), image=np.zeros((1, 9, 9)))
    assert npz_width(tmp_path / "wide.npz") == 300_002
    refuse_columns(tmp_path / "wide.npz", 300_002)
    (tmp_path / "wide.csv").write_text(",".join(map(str, range(200_001))) + "\n" + "1," * 200_000 + "1\n")
    refuse_columns(tmp_path / "wide.csv", 200_001)


def test_tables_of_every_day_are_read_and_a_wrong_limit_is_named(tmp_path, monkeypatch):
    path = tmp_path / "rows.svm"
    path.write_text("1 1:0.5 3:1\n0 2:0.5\n")
    assert read_table(path).rows == 2
    monkeypatch.setenv("FEDPDM_MEMORY", "much")
    with pytest.raises(DataError, match="number of gigabytes"):
        read_table(path)
