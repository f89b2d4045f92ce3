"""A frozen encoder is a public map: pinned by its digest, refused if it looks at other rows, the same for every client."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fedpdm import load_config, train
from fedpdm.data.encoders import add_encoder, encoder_file, file_digest
from fedpdm.data.prepare import map_row, prepare_rows
from fedpdm.data.schema import Image, Schema, to_toml
from fedpdm.engines.flower.client.approve import approve
from fedpdm.engines.flower.client.node_data import NodeSource, read_file_rows
from fedpdm.engines.flower.client.policy import load_policy
from fedpdm.engines.flower.init import job_from, policy_for
from fedpdm.errors import ConfigError
from fedpdm.export.onnx.model import export_onnx
from fedpdm.runs.saved import load_model

pytest.importorskip("onnxruntime")
SCHEMA = Schema(label="kind", classes=["a", "b"], columns={"photo": Image(shape=[4, 5, 3])})
SIZE = 7


def write_encoder(path, looks_around=False, shape=("rows", 3, 4, 5), seed=0):
    weights = np.random.default_rng(seed).normal(size=(60, SIZE)).astype(np.float32)
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array([-1, 60], np.int64), "flat")]
    nodes = [helper.make_node("Reshape", ["x", "flat"], ["rows"]), helper.make_node("MatMul", ["rows", "w"], ["y"])]
    if looks_around:
        nodes += [helper.make_node("ReduceMean", ["y"], ["m"], axes=[0]), helper.make_node("Sub", ["y", "m"], ["z"])]
    else:
        nodes.append(helper.make_node("Tanh", ["y"], ["z"]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["rows", SIZE])]
    graph = helper.make_graph(nodes, "encoder", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPDM_CACHE", str(tmp_path / "cache"))
    write_encoder(tmp_path / "e.onnx")
    photos = np.random.default_rng(1).integers(0, 256, (12, 4, 5, 3), dtype=np.uint8)
    np.savez(tmp_path / "photos.npz", photo=photos, kind=["a", "b"] * 6)
    (tmp_path / "s.toml").write_text(to_toml(SCHEMA))
    return tmp_path


def settings(home, *more):
    data = [f"data.name={home / 'photos.npz'}", f"data.schema_file={home / 's.toml'}", "data.clients=2", "data.basis=none"]
    return [*data, "data.features=onnx", f"data.encoder={home / 'e.onnx'}", *more]


def pixels(home):
    with np.load(home / "photos.npz") as arrays:
        flat = arrays["photo"].reshape(12, -1) / 255
    return np.concatenate([flat, np.ones((12, 1))], axis=1).astype(np.float32)


def test_every_client_has_the_same_features_at_norm_one(home):
    config = load_config("private-mapped", settings(home))
    together = prepare_rows(config, pixels(home), SCHEMA.feature_names)
    for row in range(12):
        alone = map_row(config, pixels(home)[row], SCHEMA.feature_names)
        np.testing.assert_allclose(alone, together[row], atol=1e-5)
    direction = together[:, :-1] / np.linalg.norm(together[:, :-1], axis=1, keepdims=True)
    images = pixels(home)[:, :-1].reshape(12, 4, 5, 3).transpose(0, 3, 1, 2).reshape(12, -1)
    expected = np.tanh(images @ np.random.default_rng(0).normal(size=(60, SIZE)).astype(np.float32))
    np.testing.assert_allclose(direction, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)
    assert np.linalg.norm(together, axis=1).max() <= 1


def test_an_encoder_that_looks_at_other_rows_is_refused(home):
    write_encoder(home / "e.onnx", looks_around=True)
    with pytest.raises(ConfigError, match="it uses other examples"):
        prepare_rows(load_config("private-mapped", settings(home)), pixels(home), SCHEMA.feature_names)


def test_a_run_pins_its_encoder_and_refuses_another_file(home):
    config = load_config("mapped", settings(home, "rounds.total=2", "metrics.diagnose_every=0", "problem.loss=softmax"))
    train(config, home / "run")
    model = load_model(home / "run")
    assert model.config.data.encoder_digest == file_digest(home / "e.onnx")
    onnx_model = onnx.load_from_string(export_onnx(model))
    assert [each.name for each in onnx_model.graph.input] == ["mapped"]
    about = {each.key: each.value for each in onnx_model.metadata_props}
    assert about["encoder_digest"] == file_digest(home / "e.onnx")
    content = bytearray((home / "e.onnx").read_bytes())
    content[-3] ^= 1
    (home / "e.onnx").write_bytes(content)
    with pytest.raises(ConfigError, match=r"another encoder, or it is damaged"):
        prepare_rows(model.config, pixels(home), SCHEMA.feature_names)
    write_encoder(home / "other.onnx")
    add_encoder(home / "other.onnx")  # the right content under another name
    assert prepare_rows(model.config, pixels(home), SCHEMA.feature_names).shape == (12, SIZE + 1)


def test_a_node_finds_the_encoder_that_its_operator_added(home, monkeypatch):
    job = job_from("private-mapped", settings(home), slots=[12], schema=home / "s.toml")
    assert job.settings.data.encoder == "e.onnx"
    expected = prepare_rows(load_config("private-mapped", settings(home)), pixels(home), SCHEMA.feature_names)
    (home / "e.onnx").rename(home / "moved.onnx")
    monkeypatch.setenv("FEDPDM_CACHE", str(home / "cache of the node"))
    with pytest.raises(ConfigError, match="fedpdm features add"):
        encoder_file("e.onnx", job.settings.data.encoder_digest)
    add_encoder(home / "moved.onnx")
    source = NodeSource(0, home / "photos.npz", home / "s.toml", None)
    np.testing.assert_allclose(read_file_rows(source, job).features, expected, atol=1e-5)
    text = policy_for(job)
    (home / "policy.toml").write_text(text)
    approve(home / "state", job, load_policy(home / "policy.toml"), source)
    (home / "policy.toml").write_text(text.replace(job.settings.data.encoder_digest, "0" * 64))
    with pytest.raises(Exception, match="asks for the encoder"):
        approve(home / "other", job, load_policy(home / "policy.toml"), source)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(b"no model"), "not a valid ONNX file"),
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: write_encoder(path, shape=("rows", 3, 9, 9)), "shape"),
    ],
)
def test_a_file_that_is_no_encoder_ends_in_one_line(home, spoil, said):
    spoil(home / "e.onnx")
    config = load_config("mapped", settings(home))
    with pytest.raises(ConfigError, match=said) as caught:
        map_row(config, pixels(home)[0], SCHEMA.feature_names)
    assert "\n" not in str(caught.value)
