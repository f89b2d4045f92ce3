"""A node reads its own images: from a folder, an NPZ or a Parquet file, and a broken one is an empty slot."""

import io
import os
from pathlib import Path

import numpy as np
import onnx
import polars as pl
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image as Pillow

from fedpdm.data.schema import Image, Schema, to_toml
from fedpdm.data.tables import read_table
from fedpdm.engines.flower.client.approve import approve
from fedpdm.engines.flower.client.node_data import NodeSource, forget_old_rows, load_examples, read_file_rows
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.client.rows import read_rows
from fedpdm.engines.flower.init import job_from, policy_for
from fedpdm.runs.saved import prepare_rows

SCHEMA = Schema(label="kind", classes=["a", "b"], columns={"photo": Image(shape=[8, 8, 3])})
SETTINGS = ["data.clients=2", "data.basis=none", "data.scattering_scale=1", "data.features=scattering"]


def pictures():
    return np.random.default_rng(1).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


def png(pixels):
    out = io.BytesIO()
    Pillow.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def home(tmp_path):
    (tmp_path / "s.toml").write_text(to_toml(SCHEMA))
    for place, pixels in enumerate(pictures()):
        folder = tmp_path / "photos" / "ab"[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{place}.png").write_bytes(png(pixels))
    contents = [png(pixels) for pixels in pictures()]
    kinds = ["ab"[place % 2] for place in range(6)]
    pl.DataFrame({"photo": [{"bytes": c, "path": ""} for c in contents], "kind": kinds}).write_parquet(tmp_path / "p.parquet")
    np.savez(tmp_path / "p.npz", photo=pictures(), kind=kinds)
    return tmp_path


def job(home):
    return job_from("private-mapped", SETTINGS, slots=[6], schema=home / "s.toml")


def test_a_node_maps_images_as_the_simulation_does(home):
    work = job(home)
    pixels = np.concatenate([pictures().reshape(6, -1) / 255, np.ones((6, 1))], axis=1).astype(np.float32)
    expected = prepare_rows(work.config, pixels, SCHEMA.feature_names)
    for name in ("p.parquet", "p.npz"):
        own = read_file_rows(NodeSource(0, home / name, home / "s.toml", None), work)
        np.testing.assert_allclose(own.features, expected, atol=1e-5, err_msg=name)
        assert own.labels.tolist() == [0, 1, 0, 1, 0, 1]
    own = read_file_rows(NodeSource(0, home / "photos", home / "s.toml", None), work)
    np.testing.assert_allclose(own.features, expected[[0, 2, 4, 1, 3, 5]], atol=1e-5)
    assert own.labels.tolist() == [0, 0, 0, 1, 1, 1]
    (home / "policy.toml").write_text(policy_for(work))
    approve(home / "state", work, load_policy(home / "policy.toml"), NodeSource(0, home / "photos", home / "s.toml", None))


def test_a_broken_image_changes_no_other_row(home):
    before = read_rows(home / "photos", SCHEMA)
    (home / "photos" / "a" / "2.png").write_bytes(b"broken")
    (home / "photos" / "stray.png").write_bytes(b"")
    after = read_rows(home / "photos", SCHEMA)
    assert after.good.tolist() == [True, False, True, True, True, True, False]
    np.testing.assert_array_equal(after.features[[0, 2, 3, 4, 5]], before.features[[0, 2, 3, 4, 5]])
    pl.DataFrame({"photo": ["x.png"] * 2, "kind": ["a", "b"]}).write_csv(home / "paths.csv")
    assert not read_rows(home / "paths.csv", SCHEMA).good.any(), "a node follows no paths"


def test_odd_images_are_empty_slots_and_no_more(home):
    """A huge file, one that unpacks to too much, names that are no text, pipes, links to nowhere; the first row above all."""
    photos = home / "photos"
    before = read_rows(photos, SCHEMA)
    with (photos / "a" / "0.huge.png").open("wb") as file:
        file.truncate(2**40)  # sparse: more than any memory limit
    bomb = png(pictures()[0])
    (photos / "a" / "0.bomb.png").write_bytes(bomb[:16] + (2**15).to_bytes(4) * 2 + bomb[24:])
    os.mkfifo(photos / "a" / "0.pipe.png")
    (photos / "a" / "0.link.png").symlink_to("nowhere")
    for odd in (b"\xff\xfe", b"~nobody"):
        folder = os.fsencode(photos) + b"/" + odd
        os.mkdir(folder)  # noqa: PTH102
        (Path(os.fsdecode(folder)) / "x.png").write_bytes(bomb)
    after = read_rows(photos, SCHEMA)
    assert after.good.sum() == 6
    np.testing.assert_array_equal(after.features[after.good], before.features)
    for odd in (b"", b"broken", None):
        contents = [odd, *(png(pixels) for pixels in pictures())]
        kinds = ["a", *("ab"[place % 2] for place in range(6))]
        for cells in ([{"bytes": content, "path": ""} for content in contents], contents):
            pl.DataFrame({"photo": cells, "kind": kinds}).write_parquet(home / "odd.parquet")
            found = read_rows(home / "odd.parquet", SCHEMA)
            assert found.good.tolist() == [False] + [True] * 6, "the first row says nothing about the others"


def test_an_encoder_that_fails_at_one_row_leaves_its_slot_empty(home):
    """It returns infinite numbers, or a vector of another length, for one image; the others are encoded as without it."""
    for odd in ("infinite", "short"):
        odd_encoder(home / "encoder.onnx", odd)
        work = job_from(
            "private-mapped",
            ["data.clients=2", "data.basis=none", "data.features=onnx", f"data.encoder={home / 'encoder.onnx'}"],
            slots=[6],
            schema=home / "s.toml",
        )
        images, kinds = pictures(), ["ab"[place % 2] for place in range(6)]
        np.savez(home / "p.npz", photo=images, kind=kinds)
        plain = read_file_rows(NodeSource(0, home / "p.npz", None, None), work)
        images[2] = 255
        np.savez(home / "p.npz", photo=images, kind=kinds)
        found = read_file_rows(NodeSource(0, home / "p.npz", None, None), work)
        assert found.filled.tolist() == [place != 2 for place in range(6)], odd
        np.testing.assert_array_equal(found.features[found.filled], plain.features[found.filled])


def odd_encoder(path, odd):
    """The mean of every channel; for white images infinite numbers, or a vector of another length."""
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    given = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "m"])
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("Sub", ["one", "mean"], ["dark"]),
    ]
    if odd == "infinite":
        nodes.append(helper.make_node("Div", ["one", "dark"], ["y"]))
    else:
        nodes += [helper.make_node("Cast", ["dark"], ["truth"], to=TensorProto.BOOL)]
        nodes += [helper.make_node("Squeeze", ["truth", "first"], ["places"])]
        nodes += [helper.make_node("Compress", ["mean", "places"], ["y"], axis=1)]
    constants = [
        numpy_helper.from_array(np.ones(1, np.float32), "one"),
        numpy_helper.from_array(np.zeros(1, np.int64), "first"),
    ]
    graph = helper.make_graph(nodes, "odd", [taken], [given], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def test_a_deleted_image_is_forgotten(home):
    work, source, state = job(home), NodeSource(0, home / "photos", None, None), home / "state"
    state.mkdir()
    assert load_examples(source, work, state).weights.sum() == 6
    (home / "photos" / "a" / "2.png").unlink()
    forget_old_rows(source, state)
    assert not list((state / "examples").glob("*.npz"))
    assert load_examples(source, work, state).weights.sum() == 5


def test_the_owner_reads_the_same_folder(home):
    table = read_table(home / "photos")
    assert table.columns["label"].to_list() == ["a"] * 3 + ["b"] * 3
