"""Images and texts get the preset with a feature map, also without a schema: a look at the first rows decides."""

import io

import numpy as np
import polars as pl
import pytest
from PIL import Image as Pillow

from fedpdm.cli.tables import preset_for
from fedpdm.data.peek import needs_map
from fedpdm.data.schema import Ignored, Image, Number
from fedpdm.data.schema_inference import infer_schema
from fedpdm.data.tables import read_table

ROWS = 60


def png():
    out = io.BytesIO()
    Pillow.fromarray(np.zeros((4, 5, 3), np.uint8)).save(out, "PNG")
    return out.getvalue()


def columns(name):
    sentences = [f"the number {row} stood in the book" for row in range(ROWS)]
    known = {
        "images": {"image": [png()] * ROWS},
        "pairs": {"image": [{"bytes": png(), "path": None}] * ROWS},
        "texts": {"note": sentences},
        "texts and numbers": {"note": sentences, "age": list(range(20, 20 + ROWS // 2)) * 2},
        "numbers": {"age": list(range(20, 20 + ROWS // 2)) * 2},
        "paths": {"photo": ["x.png"] * ROWS},
        "lost paths": {"photo": [f"{row}.png" for row in range(ROWS)]},
    }
    return {"kind": ["a", "b"] * (ROWS // 2), **known[name]}


@pytest.mark.parametrize(
    ("name", "ending", "mapped"),
    [
        ("images", "parquet", True),
        ("pairs", "parquet", True),
        ("texts", "parquet", True),
        ("texts", "csv", True),
        ("texts and numbers", "csv", False),
        ("numbers", "csv", False),
        ("paths", "csv", True),
        ("lost paths", "csv", False),
    ],
)
def test_the_first_rows_tell_images_and_texts(tmp_path, name, ending, mapped):
    (tmp_path / "x.png").write_bytes(png())
    path = tmp_path / f"rows.{ending}"
    frame = pl.DataFrame(columns(name))
    frame.write_csv(path) if ending == "csv" else frame.write_parquet(path)
    assert preset_for(str(path), None, None, ("kind",)) == ("mapped" if mapped else "table")
    assert preset_for(str(path), None, 1.0, ("kind",), ["data.features=auto"]) == "private-mapped"
    assert preset_for(str(path), None, 1.0, ("kind",), ["data.features=raw"]) == "private-table"


@pytest.mark.parametrize(("shape", "mapped"), [((6, 4, 4, 3), True), ((6, 4, 4), True), ((6, 4), False)])
def test_the_dimensions_of_an_array_tell_images(tmp_path, shape, mapped):
    np.savez(tmp_path / "rows.npz", x=np.zeros(shape, np.uint8), kind=np.arange(6) % 2)
    assert needs_map(str(tmp_path / "rows.npz"), ("kind",)) is mapped


def test_folders_and_broken_files(tmp_path):
    assert needs_map(str(tmp_path))
    (tmp_path / "x.parquet").write_bytes(b"no table")
    assert not needs_map(str(tmp_path / "x.parquet"))  # the error comes when it is read
    assert not needs_map("sklearn:wine")


def test_paths_are_images_if_there_is_nothing_else(tmp_path):
    (tmp_path / "x.png").write_bytes(png())
    path = tmp_path / "rows.csv"
    pl.DataFrame(columns("paths")).write_csv(path)
    assert infer_schema(read_table(path), "kind").schema.columns == {"photo": Image(shape=[4, 5, 3])}
    pl.DataFrame(columns("paths") | columns("numbers")).write_csv(path)
    schema, notes = infer_schema(read_table(path), "kind")
    assert isinstance(schema.columns["age"], Number)
    assert isinstance(schema.columns["photo"], Ignored)
    assert any("paths of images" in note for note in notes)
