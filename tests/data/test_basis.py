"""A public basis: directions of made-up or public rows, never of private ones."""

import gzip

import numpy as np
import pytest

from fedpdm.choices.words import DRAWINGS
from fedpdm.config import load_config
from fedpdm.data.basis import POWER, drawn_rows, principal_basis, unit_rows
from fedpdm.data.basis_files import basis_path, is_pinned, keep_public_rows, public_rows
from fedpdm.data.datasets import load_dataset
from fedpdm.data.features import FeatureOptions, basis_of, check_one_example_at_a_time, make_map, options_of
from fedpdm.data.made_up import made_up_rows
from fedpdm.data.prepare import prepare, prepare_rows
from fedpdm.data.schema import Category, Number, Schema
from fedpdm.engines.flower.init import job_from
from fedpdm.engines.flower.job import make_job
from fedpdm.errors import ConfigError, DataError
from fedpdm.runs.saved import SavedModel, load_model
from fedpdm.runs.train import train

ARRAY = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(128) + b"\0" * 4  # NPY
SMALL = FeatureOptions(basis="strokes", basis_size=20)


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


@pytest.mark.parametrize("rows", [30, 200])
def test_directions_are_those_of_the_covariance_half_whitened(rows):
    """Both ways to decompose (by rows, by columns) give NumPy's eigenvectors, scaled by (w_j + w_1/1000)^(-1/4)."""
    features = np.random.default_rng(0).normal(size=(rows, 60)) * np.linspace(3, 0.1, 60)
    basis = principal_basis(features, 4)
    unit = unit_rows(features)
    moved = unit - unit.mean(axis=0)
    values, vectors = np.linalg.eigh(moved.T @ moved / rows)
    values, vectors = values[::-1][:4], vectors[:, ::-1][:, :4]
    expected = vectors * (values + values[0] / 1000) ** POWER
    np.testing.assert_allclose(np.abs(basis.directions), np.abs(expected), atol=1e-5)
    np.testing.assert_allclose(basis.centre, unit.mean(axis=0), atol=1e-6)


def test_a_basis_does_not_look_at_the_examples(digits):
    """The basis does not depend on the mapped rows, and every row is mapped by itself: it costs no privacy."""
    names = digits.feature_names
    chosen = make_map("scattering", names, SMALL)
    check_one_example_at_a_time(chosen, digits.features[:5], names)
    before = basis_of("scattering", tuple(names[:-1]), SMALL).directions.copy()
    chosen.rows(np.zeros((3, len(names)), np.float32), names)
    np.testing.assert_array_equal(before, basis_of("scattering", tuple(names[:-1]), SMALL).directions)


def test_chunks_change_nothing(digits, monkeypatch):
    names = digits.feature_names
    chosen = make_map("scattering", names, SMALL)
    whole = chosen.rows(digits.features[:70], names)
    monkeypatch.setattr("fedpdm.data.features.CHUNK", 16)
    np.testing.assert_allclose(whole, chosen.rows(digits.features[:70], names), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(whole[:, :-1], axis=1), 1, atol=1e-5)


def test_there_are_no_more_directions_than_features(digits):
    chosen = make_map("scattering", digits.feature_names, FeatureOptions(basis="strokes", scattering_scale=3, basis_size=500))
    assert chosen.rows(digits.features[:2], digits.feature_names).shape[1] == 218
    assert len(chosen.columns(digits.feature_names[:-1])) == 217


@pytest.mark.parametrize("name", DRAWINGS)
def test_made_up_images_differ_and_are_the_same_every_time(name):
    images = drawn_rows(name, 16, 20, 1, 12).reshape(12, 16, 20)
    assert images.shape == (12, 16, 20)
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.std(axis=0).max() > 0.1
    np.testing.assert_array_equal(images, drawn_rows(name, 16, 20, 1, 12).reshape(12, 16, 20))


def test_auto_is_strokes_for_writing_shapes_for_other_images_and_none_for_tables(digits):
    auto = load_config("demo", ["data.basis=auto", "data.basis_size=9"]).data
    assert options_of(auto)["basis"] == "strokes"
    other = make_map("scattering", digits.feature_names, FeatureOptions(basis="auto", basis_size=9))
    assert "made-up shapes" in other.sentence
    assert make_map("piecewise", ["age", "job=a"], FeatureOptions(basis="auto")).sentence.startswith("Tables")


def test_a_public_file_gives_a_basis_for_any_map(digits, tmp_path):
    path = tmp_path / "public.npz"
    np.savez(path, features=digits.test_features[:, :-1])
    config = load_config("plain", ["data.name=digits", "data.scaling=", "data.features=fourier", "data.fourier_count=50"])
    data = config.data.model_copy(update={"basis": str(path), "basis_size": 7})
    mapped = prepare(config.model_copy(update={"data": data}), digits)
    assert mapped.features.shape[1] == 8
    assert mapped.feature_names[0] == "direction 0"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"no archive", "cannot be read as public rows"),
        (b"", "it is no NPZ file"),
        (ARRAY, "it is no NPZ file"),
        (np.zeros((4, 3), np.float32), r"expected `features` of shape \[rows, 64\], got \[4, 3\]"),
        (np.full((4, 64), np.nan, np.float32), "some that are not finite"),
        (np.full((4, 64), 255.0, np.float32), "255 to 255: divide pixels by 255"),
        (np.full((4, 64), "word"), "could not convert string"),
        (np.ones((1, 64), np.float32), "at least 2 public rows"),
        (np.ones((4, 64), np.float32), "The 4 public rows of the basis are all alike"),
    ],
)
def test_a_public_file_that_does_not_fit_is_refused(digits, tmp_path, content, words):
    path = tmp_path / "public.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, features=content)
    with pytest.raises(ConfigError, match=words):
        make_map("scattering", digits.feature_names, FeatureOptions(basis=str(path), basis_size=20)).rows(
            digits.features[:2], digits.feature_names
        )


@pytest.mark.parametrize("name", ["digits", "adult"])
def test_made_up_rows_have_the_columns_of_the_data(name):
    rows, names = made_up_rows(name, None, 40)
    assert rows.shape == (40, len(names))
    assert rows.min() >= 0
    assert rows.max() <= 1
    assert rows.std(axis=0).max() > 0.1


def test_a_saved_model_with_fewer_weights_scores_made_up_rows_alike():
    config = load_config("plain", ["data.name=digits", "data.scaling=", "data.features=scattering", "data.scattering_scale=3"])
    weights = np.random.default_rng(0).normal(size=(10, 218)).astype(np.float32)
    model = SavedModel(weights, tuple(map(str, range(10))), ("",) * 218, config, None)
    thin = model.thinned(0.3)
    assert np.count_nonzero(thin.weights) == round(0.3 * 2180)
    assert np.count_nonzero(model.thinned(100).weights) == 100
    rows, names = made_up_rows("digits", None, 300)
    seen = prepare_rows(config, rows, names)
    before, after = (seen @ (m.weights - m.weights.mean(axis=0)).T for m in (model, thin))  # what softmax sees
    assert np.corrcoef(before.ravel(), after.ravel())[0, 1] > 0.98
    with pytest.raises(ConfigError, match=r"--weights=1\.5"):
        model.thinned(1.5)


def test_public_rows_are_named_by_their_digest_in_settings_and_jobs(digits, tmp_path, monkeypatch):
    """A table, images and arrays become one file in the cache; a changed or a missing one is refused."""
    monkeypatch.setenv("FEDPDM_CACHE", str(tmp_path / "cache"))
    pixels = np.random.default_rng(0).integers(0, 256, (30, 8, 8)).astype(np.uint8)
    packed = b"\x00\x00\x08\x03" + b"".join(size.to_bytes(4, "big") for size in pixels.shape) + pixels.tobytes()
    (tmp_path / "images.gz").write_bytes(gzip.compress(packed))
    name = keep_public_rows(public_rows(tmp_path / "images.gz", None)[0])
    assert name == keep_public_rows(pixels.reshape(30, 64) / np.float32(255)), "the same rows have the same name"
    chosen = make_map("scattering", digits.feature_names, FeatureOptions(basis=name, basis_size=5))
    assert chosen.rows(digits.features[:2], digits.feature_names).shape == (2, 6)
    config = load_config("demo", ["data.name=digits", "data.scattering_scale=1", f"data.basis={name}", "data.basis_size=5"])
    assert make_job(config, 10, list("0123456789"), digits.feature_names).shape == (10, 6)
    other = config.data.model_copy(update={"basis": "public.npz"})
    with pytest.raises(ConfigError, match="a job contains no files"):
        make_job(config.model_copy(update={"data": other}), 10, list("0123456789"), digits.feature_names)
    path = basis_path(name)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ConfigError, match="that was changed there"):
        basis_path(name)


def test_a_public_table_becomes_rows_of_its_schema(tmp_path):
    (tmp_path / "public.csv").write_text("age,sex\n30,f\n60,m\n150,x\n")
    schema = Schema(
        label="ill", classes=["no", "yes"], columns={"age": Number(low=0, high=120), "sex": Category(levels=["f", "m"])}
    )
    rows, notes = public_rows(tmp_path / "public.csv", schema)
    np.testing.assert_allclose(rows, [[0.25, 1, 0], [0.5, 0, 1], [1, 0, 0]])
    assert [note.partition(":")[0] for note in notes] == ["age", "sex"], "what did not fit is said"
    with pytest.raises(DataError, match="a table needs its schema"):
        public_rows(tmp_path / "public.csv", None)


@pytest.mark.parametrize("content", [b"hello", gzip.compress(bytes(5000), mtime=0)[:20]], ids=["no gzip", "cut"])
def test_broken_packed_images_are_refused(tmp_path, content):
    (tmp_path / "images.gz").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as public rows"):
        public_rows(tmp_path / "images.gz", None)


def test_a_saved_model_has_the_basis_that_it_was_trained_with(digits, tmp_path, monkeypatch):
    """Later changes of the public file, or another working folder, change no prediction."""
    monkeypatch.setenv("FEDPDM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    public = digits.test_features[:, :-1]
    np.savez("public.npz", features=public)
    given = ["data.name=digits", "data.clients=5", "data.scattering_scale=1", "data.basis=public.npz", "rounds.total=2"]
    config = load_config("private-mapped", given)
    train(config, tmp_path / "run", progress=False)
    model = load_model(tmp_path / "run")
    before = prepare_rows(model.config, digits.features[:3], digits.feature_names)
    np.savez("public.npz", features=public[::-1] ** 2)
    basis_of.cache_clear()
    np.testing.assert_array_equal(before, prepare_rows(model.config, digits.features[:3], digits.feature_names))
    assert is_pinned(model.config.data.basis)
    job = job_from("private-mapped", given, slots=None)
    assert is_pinned(job.config.data.basis)
    assert job.config.data.basis != model.config.data.basis, "a job has the rows of the file as it is now"


def test_drawings_are_for_images_alone():
    chosen = make_map("piecewise", ["age", "pay", "bias"], FeatureOptions(basis="shapes", basis_size=5))
    with pytest.raises(ConfigError, match=r"data\.basis=shapes is drawn for images"):
        chosen.rows(np.ones((2, 3), np.float32), ["age", "pay", "bias"])
