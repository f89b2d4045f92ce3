"""A table can have a column of images: from folders, arrays, Parquet files and paths, all with the same pixels."""

import io
import os
import struct
import zlib

import numpy as np
import polars as pl
import pytest
from PIL import Image as Pillow

from fedpdm import load_config, train
from fedpdm.data.datasets import Dataset
from fedpdm.data.encoding import encode
from fedpdm.data.federation import make_federation
from fedpdm.data.images import MOST_PIXELS, decode
from fedpdm.data.prepare import prepare
from fedpdm.data.schema import Ignored, Image, Schema, parse_schema, to_toml
from fedpdm.data.schema_inference import infer_schema
from fedpdm.data.tables import read_table, table_from_columns
from fedpdm.errors import DataError
from fedpdm.export.onnx.model import export_onnx
from fedpdm.report import write_report
from fedpdm.runs.saved import load_model

SCHEMA = Schema(label="label", classes=["cat", "dog"], columns={"image": Image(shape=[6, 5, 3])})
CLASSES = ("cat", "dog")


def pictures(count=4, shape=(6, 5, 3)):
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def png(pixels, kind="PNG"):
    out = io.BytesIO()
    Pillow.fromarray(pixels).save(out, kind)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path):
    for place, pixels in enumerate(pictures()):
        home = tmp_path / "photos" / f"clinic {place % 2}" / CLASSES[place // 2]
        home.mkdir(parents=True, exist_ok=True)
        (home / f"{place}.png").write_bytes(png(pixels))
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    return tmp_path / "photos"


def test_all_sources_give_the_same_pixels(folder, tmp_path):
    images = pictures()
    labels = [CLASSES[place // 2] for place in range(4)]
    np.savez(tmp_path / "images.npz", image=images, label=labels)
    contents = [png(pixels) for pixels in images]
    struct_column = [{"bytes": content, "path": None} for content in contents]
    pl.DataFrame({"image": struct_column, "label": labels}).write_parquet(tmp_path / "images.parquet")
    paths = [f"photos/clinic {place % 2}/{labels[place]}/{place}.png" for place in range(4)]
    pl.DataFrame({"image": paths, "label": labels}).write_csv(tmp_path / "images.csv")
    expected = np.concatenate([images.reshape(4, -1) / 255, np.ones((4, 1))], axis=1).astype(np.float32)
    for name in ("images.npz", "images.parquet", "images.csv"):
        rows = encode(SCHEMA, read_table(tmp_path / name))
        np.testing.assert_allclose(rows.features, expected, atol=1e-6, err_msg=name)
        assert rows.labels.tolist() == [0, 0, 1, 1], name
    table = read_table(folder)
    assert table.columns["client"].to_list() == ["clinic 0", "clinic 0", "clinic 1", "clinic 1"]
    rows = encode(SCHEMA.model_copy(update={"client": "client"}), table)
    np.testing.assert_allclose(rows.features, expected[[0, 2, 1, 3]], atol=1e-6)
    assert rows.clients.names == ("clinic 0", "clinic 1")


def test_an_image_is_one_column_of_the_schema(folder):
    schema, notes = infer_schema(read_table(folder), "label", "client")
    assert schema.columns["image"] == Image(shape=[6, 5, 3])
    assert schema.columns["file"].kind == "ignored"
    assert len(to_toml(schema).splitlines()) < 20
    assert parse_schema(to_toml(schema)) == schema
    assert len(schema.feature_names) == 6 * 5 * 3 + 1
    assert "6 x 5 pixels" in notes[0]


@pytest.mark.parametrize("white", [1.0, 4095.0])
def test_pixels_are_scaled_by_the_public_white(white):
    grey = np.linspace(-0.1, 1.1, 2 * 4 * 3).reshape(2, 4, 3) * white
    schema = Schema(label="y", classes=["0", "1"], columns={"scan": Image(shape=[4, 3], white=white)})
    rows = encode(schema, table_from_columns({"scan": grey, "y": ["0", "1"]}))
    np.testing.assert_allclose(rows.features[:, :-1], np.clip(grey / white, 0, 1).reshape(2, -1), atol=1e-6)


def test_clear_parts_of_an_image_are_white():
    """A black line on a clear ground stays a line: Pillow alone would make it all black."""
    pixels = np.zeros((1, 3, 4), np.uint8)
    pixels[0, :, 3] = 255, 127, 0  # black: opaque, half clear, clear
    palette = io.BytesIO()
    few = Pillow.fromarray(np.array([[0, 0, 1]], np.uint8)).convert("P")
    few.save(palette, "PNG", transparency=1)
    for content, expected in ((png(pixels), [0, 128 / 255, 1]), (palette.getvalue(), [0, 0, 1])):
        for depth in (1, 3):
            np.testing.assert_allclose(decode(content, (1, 3, depth))[0, :, 0], expected, atol=0.005)
    np.testing.assert_allclose(decode(png(pixels), (1, 3, 4))[0, :, 3], [1, 127 / 255, 0], atol=1e-6)


def test_every_image_is_resized_by_itself():
    small = Schema(label="y", classes=["0", "1"], columns={"image": Image(shape=[4, 4])})
    flat = [png(np.full((9, 7, 3), 51, np.uint8)), png(np.full((40, 8), 255, np.uint8), "JPEG")]
    rows = encode(small, table_from_columns({"image": flat, "y": ["0", "1"]}))
    np.testing.assert_allclose(rows.features[:, :-1], np.repeat([[0.2], [1.0]], 16, axis=1), atol=0.01)
    alone = encode(small, table_from_columns({"image": flat[:1], "y": ["0"]}))
    np.testing.assert_array_equal(alone.features, rows.features[:1])


def bomb(times=1):
    """A PNG file of a few bytes whose header claims more pixels than a multiple of the limit."""
    side = int((times * MOST_PIXELS) ** 0.5) + 1
    parts = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bomb(), "limit is 50 million"),
        (bomb(times=4), "far more pixels than 50 million"),
        (png(pictures(1)[0])[:60], "cannot be decoded"),
        (b"\x89PNG no image", "neither a PNG nor a JPEG"),
        (b"", "neither a PNG nor a JPEG"),
    ],
)
def test_a_bad_file_ends_in_one_line_that_names_it(folder, content, said):
    (folder / "clinic 1" / "dog" / "bad.png").write_bytes(content)
    ignored = SCHEMA.model_copy(update={"columns": {"file": Ignored(), **SCHEMA.columns}})
    for schema, consume in ((SCHEMA, False), (ignored, True)):  # a run consumes the table, and infers that it ignores the names
        with pytest.raises(DataError, match=said) as caught:
            encode(schema, read_table(folder), consume=consume)
        assert "clinic 1/dog/bad.png" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_path_to_a_device_or_a_pipe_is_not_read(tmp_path):
    """A device has no end, and a pipe may never answer."""
    os.mkfifo(tmp_path / "pipe.png")
    schema = Schema(label="y", classes=["0", "1"], columns={"image": Image(shape=[4, 4])})
    for path in ("/dev/zero", "pipe.png"):
        table = table_from_columns({"image": [path], "y": ["0"]})._replace(folder=tmp_path)
        with pytest.raises(DataError, match=f"{path} is no ordinary file"):
            encode(schema, table)


def test_folders_that_do_not_fit_are_refused(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images"):
        read_table(tmp_path / "empty")
    (folder / "lost.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"lost\.png do not fit one layout"):
        read_table(folder)


def test_predictions_export_and_report_take_images(folder, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    table = table_from_columns({"image": pictures(12), "label": ["cat", "dog"] * 6})
    settings = ["data.features=scattering", "data.scattering_scale=1", "data.basis_size=5", "problem.loss=softmax"]
    config = load_config("mapped", [*settings, "data.clients=2", "rounds.total=2", "metrics.diagnose_every=0"])
    rows = encode(SCHEMA, table)
    data = Dataset("images", *rows[:2], *rows[:2], CLASSES, SCHEMA.feature_names, {})
    federation = make_federation(prepare(config, data), [np.arange(6), np.arange(6, 12)])._replace(schema=SCHEMA)
    train(config, tmp_path / "run", federation=federation)
    model = load_model(tmp_path / "run")
    shares = model.probabilities(model.features(table)[0])
    session = onnxruntime.InferenceSession(export_onnx(model))
    pixels = pictures(12).astype(np.float32)
    np.testing.assert_allclose(session.run(["probabilities"], {"image": pixels})[0], shares, atol=1e-5)
    lines = model.predictions_csv(read_table(folder), ["file"])[0].splitlines()
    assert lines[1].startswith("clinic 0/cat/0.png,")
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "The weights of the 3 channels are added." in page


def test_images_are_neither_words_nor_numbers():
    table = table_from_columns({"image": pictures(2), "y": ["0", "1"]})
    schema = parse_schema('label = "y"\nclasses = ["0", "1"]\n[columns.image]\nkind = "number"\nlow = 0\nhigh = 1\n')
    with pytest.raises(DataError, match=r'kind = "image"'):
        encode(schema, table)
    with pytest.raises(DataError, match="only column"):
        parse_schema(to_toml(SCHEMA) + '[columns.age]\nkind = "number"\nlow = 0\nhigh = 1\n')
