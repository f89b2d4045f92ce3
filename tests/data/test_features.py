"""Public feature maps: of one example alone, and of norm 1."""

import numpy as np
import pytest
from conftest import fedpdm
from scipy.ndimage import convolve

from fedpdm.choices import FEATURE_MAPS, SCALINGS, FeatureMapChoice, ScalingChoice
from fedpdm.config import load_config
from fedpdm.data import encode_adult, load_dataset
from fedpdm.data.datasets import Dataset
from fedpdm.data.feature_cache import feature_dir, remember
from fedpdm.data.features import FeatureMap, check_one_example_at_a_time, feature_map, make_map
from fedpdm.data.piecewise import ADULT_KNOTS, encode_table, hats
from fedpdm.data.prepare import build_federation
from fedpdm.data.scaling import BIAS, scale_features
from fedpdm.data.strokes import stroke_images
from fedpdm.errors import ConfigError
from fedpdm.studies.paper.certified import study


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


@pytest.mark.parametrize("scaling", SCALINGS)
def test_an_example_s_features_do_not_depend_on_the_others(digits, scaling):
    together = scale_features(digits, scaling).features
    for row in (0, 7, 700):
        alone = scale_features(digits._replace(features=digits.features[row : row + 1]), scaling).features[0]
        np.testing.assert_array_equal(alone, together[row])


@pytest.mark.parametrize("scaling", [row.name for row in SCALINGS.values() if row.unit])
def test_norm_is_one_beside_the_bias(digits, scaling):
    scaled = scale_features(digits, scaling)
    np.testing.assert_allclose(np.linalg.norm(scaled.features[:, :-1], axis=1), 1, rtol=1e-5)
    assert (scaled.features[:, -1] == np.float32(BIAS)).all()
    assert scaled.features.shape == digits.features.shape
    assert scaled.test_features.shape == digits.test_features.shape


def test_centred_root_by_its_definition(digits):
    pixels = np.sqrt(digits.features[3, :-1].astype(float))
    pixels -= pixels.mean()
    np.testing.assert_allclose(
        scale_features(digits, "centred-root").features[3, :-1], pixels / np.linalg.norm(pixels), atol=1e-6
    )


def test_an_empty_example_stays_finite(digits):
    empty = digits._replace(features=np.zeros_like(digits.features[:1]))
    assert np.isfinite(scale_features(empty, "centred-root").features).all()


def test_blur_is_the_binomial_convolution_and_wants_square_images(digits):
    kernel = np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]) / 256
    image = np.sqrt(digits.features[5, :-1].astype(float)).reshape(8, 8)
    expected = convolve(image, kernel, mode="constant")
    expected -= expected.mean()
    got = scale_features(digits, "blurred").features[5, :-1]
    np.testing.assert_allclose(got, expected.ravel() / np.linalg.norm(expected), atol=1e-6)
    with pytest.raises(ConfigError, match="square images"):
        scale_features(digits._replace(features=digits.features[:, 1:], test_features=digits.features[:, 1:]), "blurred")


PERSON = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba"


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPDM_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def table():
    """Made-up rows in the form of Adult, so that no file is needed."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(30):
        person = PERSON.split(", ")
        gain = rng.choice([0, 0, rng.integers(1, 99_999)])
        person[0], person[4], person[10], person[12] = (str(v) for v in (rng.integers(17, 91), rng.integers(1, 17), gain, 40))
        person[8] = rng.choice(["White", "Black", "Other"])
        rows.append(person)
    features = encode_adult(rows)
    labels = np.arange(30, dtype=np.int32) % 2
    from fedpdm.data.adult import ADULT_FEATURES

    return Dataset("adult", features, labels, features[:9], labels[:9], ("no", "yes"), ADULT_FEATURES, {})


def notes(table):
    """The table with a text beside each row."""
    from fedpdm.data.texts import bytes_of

    def with_text(features):
        texts = [bytes_of(f"{row} visits, then {row % 3} more", 40) for row in range(len(features))]
        return np.concatenate([features, np.stack(texts)], axis=1)

    names = (*table.feature_names, *(f"note [byte {place}]" for place in range(40)))
    features, test = with_text(table.features), with_text(table.test_features)
    return table._replace(features=features, test_features=test, feature_names=names)


def data_for(name, digits, table):
    return notes(table) if name == "hashed" else table if name == "piecewise" else digits


MAPS = [name for name in FEATURE_MAPS if name != "onnx"]  # test_encoders.py has an encoder


@pytest.mark.parametrize("name", MAPS)
def test_maps_give_an_example_the_same_features_in_any_batch(name, digits, table):
    data = data_for(name, digits, table)
    chosen = make_map(name, data.feature_names)
    together = chosen.rows(data.features, data.feature_names)
    for rows in ([3], [9, 3], [20, 3, 1, 7, 12]):
        part = chosen.rows(data.features[rows], data.feature_names)
        np.testing.assert_allclose(part[rows.index(3)], together[3], atol=1e-6)
    check_one_example_at_a_time(chosen, data.features[:5], data.feature_names)


@pytest.mark.parametrize("name", [name for name in MAPS if name != "raw"])
def test_rows_of_every_map_but_raw_have_norm_one_beside_the_bias(name, digits, table, own_cache):
    data = data_for(name, digits, table)
    mapped = make_map(name, data.feature_names, {"fourier_count": 50}).apply(data)
    for part, count in ((mapped.features, len(data.features)), (mapped.test_features, len(data.test_features))):
        assert part.shape == (count, len(mapped.feature_names))
        assert part.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(part[:, :-1], axis=1), 1, rtol=1e-5)
        assert (part[:, -1] == np.float32(BIAS)).all()
    assert len(set(mapped.feature_names)) == len(mapped.feature_names)
    assert mapped.feature_names[-1] == "bias"
    assert mapped.labels is data.labels


def test_raw_is_the_data_set_itself(digits):
    mapped = make_map("raw", digits.feature_names).apply(digits)
    assert mapped.features is digits.features
    assert mapped.feature_names == digits.feature_names


def test_auto_is_scattering_for_images_and_piecewise_for_tables(digits, table):
    assert make_map("auto", digits.feature_names).name == "scattering"
    assert make_map("auto", table.feature_names).name == "piecewise"
    with pytest.raises(ConfigError, match="raw, scattering, fourier, piecewise, hashed, onnx and auto"):
        make_map("wavelets", digits.feature_names)


def minus_the_batch_mean(rows, names):
    return rows - rows.mean(axis=0)


def by_position(rows, names):
    return rows * np.arange(1, len(rows) + 1)[:, None] % 1.7


@pytest.mark.parametrize("broken", [minus_the_batch_mean, by_position])
def test_a_map_that_looks_at_the_batch_is_refused_by_name(broken, digits):
    leaky = FeatureMap("leaky", "", broken, lambda names: names)
    with pytest.raises(ConfigError, match="'leaky' gives an example other features"):
        check_one_example_at_a_time(leaky, digits.features[:5], digits.feature_names)


@pytest.mark.parametrize("source", ["labels", "statistics of private data", "other examples"])
def test_a_map_that_says_it_was_fitted_is_refused(source, digits):
    fitted = FeatureMap("fitted", "", lambda rows, _: rows, lambda names: names, depends_on=source)
    with pytest.raises(ConfigError, match=f"'fitted' depends on {source}"):
        check_one_example_at_a_time(fitted, digits.features[:5], digits.feature_names)


def test_an_own_map_that_remembers_earlier_examples_is_refused(digits):
    seen = []

    def running_mean(example):
        seen.append(example)
        return example - np.mean(seen, axis=0)

    with pytest.raises(ConfigError, match="'running'"):
        check_one_example_at_a_time(feature_map("running", running_mean), digits.features[:5], digits.feature_names)


def test_a_scaling_that_looks_at_other_rows_is_refused_before_sound_training(registered):
    registered(ScalingChoice("centred-columns", "", minus_the_batch_mean, unit=False))
    settings = ["data.name=digits", "data.clients=10", "rounds.participants=4", "data.scaling=centred-columns"]
    build_federation(load_config("plain", settings))
    sound = ["privacy.mechanism=sound", "privacy.epsilon=1.0", "local.batch_size=0"]
    with pytest.raises(ConfigError, match="scaling 'centred-columns' gives an example other features"):
        build_federation(load_config("plain", [*settings, *sound]))


def test_the_guard_stands_before_sound_training(registered):
    registered(FeatureMapChoice("leaky", "", lambda: FeatureMap("leaky", "", minus_the_batch_mean, lambda names: names)))
    settings = ["data.name=digits", "data.clients=10", "rounds.participants=4", "data.features=leaky"]
    build_federation(load_config("plain", settings))
    sound = ["privacy.mechanism=sound", "privacy.epsilon=1.0", "local.batch_size=0"]
    with pytest.raises(ConfigError, match="'leaky'"):
        build_federation(load_config("plain", [*settings, *sound]))


def test_an_own_map_must_give_one_row_of_finite_numbers(digits):
    for wrong in (lambda example: np.outer(example, example), lambda example: example / 0.0):
        with pytest.raises(ConfigError, match="'wrong'"), np.errstate(all="ignore"):
            feature_map("wrong", wrong).apply(digits)


def test_hats_are_a_partition_of_one_that_gives_back_the_number():
    points = ADULT_KNOTS["age"].points
    ages = np.linspace(17, 90, 500)
    shape = hats(ages, points)
    assert shape.min() >= 0
    np.testing.assert_allclose(shape.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(shape @ points, ages, rtol=1e-12)
    assert (np.count_nonzero(shape, axis=1) <= 2).all()
    with pytest.raises(ConfigError, match="each above the one before"):
        hats(ages, (0, 2, 2))


def test_the_encoding_of_one_person(table):
    person = encode_adult([PERSON.split(", ")])
    encoded, names = encode_table(person, table.feature_names)
    assert encoded.shape == (1, len(names)) == (1, 77)
    value = dict(zip(names, encoded[0].tolist(), strict=True))
    assert value["age near 35"] == pytest.approx(0.6, abs=1e-5)
    assert value["age near 45"] == pytest.approx(0.4, abs=1e-5)
    assert value["education-num near 13"] == pytest.approx(1, abs=1e-5)
    assert value["hours-per-week near 40"] == pytest.approx(1, abs=1e-5)
    assert value["capital-gain above 0"] == 1
    share = np.log(2174 / 100) / np.log(3000 / 100)
    assert value["capital-gain near 3000"] == pytest.approx(share, abs=1e-5)
    assert value["capital-loss above 0"] == value["capital-loss near 0"] == 0
    assert value["occupation=(first or unknown)"] == 1
    assert value["sex=Male"] == 1
    assert not any("country" in name for name in names)


@pytest.mark.parametrize(("column", "place"), [("age", 0), ("education-num", 4), ("capital-gain", 10), ("hours-per-week", 12)])
def test_knots_have_the_bounds_that_the_loader_scales_by(column, place, table):
    knots = ADULT_KNOTS[column]
    for bound, scaled in ((knots.low, 0), (knots.high, 1)):
        person = PERSON.split(", ")
        person[place] = str(bound)
        assert encode_adult([person])[0, table.feature_names.index(column)] == scaled


def test_crosses_multiply_and_must_exist(table):
    plain, names = encode_table(table.features, table.feature_names)
    crossed, more = encode_table(table.features, table.feature_names, crosses=[("sex", "age")])
    assert crossed.shape[1] == plain.shape[1] + 2 * 6
    np.testing.assert_array_equal(crossed[:, : plain.shape[1]], plain)
    product = plain[:, names.index("sex=Male")] * plain[:, names.index("age near 45")]
    np.testing.assert_allclose(crossed[:, more.index("sex=Male and age near 45")], product, atol=1e-6)
    with pytest.raises(ConfigError, match="no 'height'"):
        encode_table(table.features, table.feature_names, crosses=[("sex", "height")])


def test_fourier_products_are_close_to_the_gaussian_kernel(digits):
    options = {"fourier_count": 20_000, "fourier_bandwidth": 0.7}
    rows = make_map("fourier", digits.feature_names, options).rows(digits.features[:12], digits.feature_names)[:, :-1]
    unit = digits.features[:12, :-1] / np.linalg.norm(digits.features[:12, :-1], axis=1, keepdims=True)
    squares = ((unit[:, None] - unit[None]) ** 2).sum(-1)
    np.testing.assert_allclose(rows @ rows.T, np.exp(-squares / (2 * 0.7**2)), atol=0.03)


def test_fourier_follows_its_public_seed(digits):
    one, same, other = (
        make_map("fourier", digits.feature_names, {"fourier_count": 9, "features_seed": seed}).rows(
            digits.features[:3], digits.feature_names
        )
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.1


def test_scattering_wants_images(table):
    with pytest.raises(ConfigError, match=r"is for images.*use piecewise"):
        make_map("scattering", table.feature_names).apply(table)


def test_the_cache_gives_back_what_was_computed_and_mends_what_is_broken(own_cache, capsys):
    array = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    calls = []

    def compute():
        calls.append(1)
        return array

    for _ in range(3):
        np.testing.assert_array_equal(remember("key", compute), array)
    assert len(calls) == 1
    (file,) = feature_dir().iterdir()
    whole = file.read_bytes()
    for broken in (whole[:-5], b"", whole[:40], whole[:-1] + bytes([whole[-1] ^ 1]), bytes(32) + whole[32:]):
        file.write_bytes(broken)
        np.testing.assert_array_equal(remember("key", compute), array)
        assert "is broken" in capsys.readouterr().err
        assert file.read_bytes() == whole
    assert len(calls) == 6
    assert [path.name for path in feature_dir().iterdir()] == [file.name]


def test_a_cache_that_cannot_be_written_only_costs_time(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDPDM_CACHE", str(tmp_path / "file"))
    assert remember("key", lambda: np.ones(2)).sum() == 2
    assert "cannot store features" in capsys.readouterr().err


def test_other_examples_or_options_have_other_files(digits, own_cache):
    few = digits._replace(features=digits.features[:3], test_features=digits.features[3:6])
    for scale in (1, 2, 2):
        chosen = make_map("scattering", few.feature_names, {"scattering_scale": scale})
        mapped = chosen.apply(few)
        np.testing.assert_array_equal(mapped.features, chosen.rows(few.features, few.feature_names))
    assert len(list(feature_dir().iterdir())) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["data.features=auto", "data.scaling=unit"], "remove one of the two"),
        (["data.features=piecewise", "data.fourier_count=5"], "set data.features=fourier"),
        (["data.scattering_scale=3"], "set data.features=scattering"),
        (["data.features=fourier", "data.fourier_bandwidth=0.0"], "greater than 0"),
    ],
)
def test_settings_that_do_not_fit_are_said(settings, words):
    with pytest.raises(ConfigError, match=words):
        load_config("plain", settings)


def test_the_command_explains_the_maps():
    shown = fedpdm("features", "show").stdout
    assert all(f"\n{name}: " in f"\n{shown}" for name in (*FEATURE_MAPS, "auto"))
    assert "costs no privacy" in shown
    assert "data.fourier_bandwidth = 1.0" in shown
    assert "choose raw, scattering" in fedpdm("features", "show", "wavelets").stderr


def test_on_digits_scattering_is_ahead_of_pixels_at_a_certified_epsilon(tmp_path):
    """The study of docs/utility.md in small, with nothing to download: tuned on a validation split, then three fresh seeds."""
    store = tmp_path / "cells.jsonl"
    rows = {
        (features, algorithm): study("digits", features, algorithm, "1", 3, store)
        for features, algorithm in (("raw", "fedpdm"), ("scattering", "fedpdm"), ("scattering", "fedavg"))
    }
    accuracy = {point: row["accuracy"] for point, row in rows.items()}
    assert accuracy["scattering", "fedpdm"] > accuracy["raw", "fedpdm"] + 0.03
    assert accuracy["scattering", "fedpdm"] > accuracy["scattering", "fedavg"] - 0.02
    assert accuracy["scattering", "fedpdm"] > 0.75


def test_strokes_are_the_same_everywhere_and_leave_the_margin_free():
    images = stroke_images(28, 28, 50)
    np.testing.assert_array_equal(images[:7], stroke_images(28, 28, 7))
    assert images.min() == 0
    assert (images.max(axis=(1, 2)) > 0.8).all()
    assert not images[:, :2].any()
    assert not images[:, :, :2].any()
    assert 0.05 < images.mean() < 0.25


def test_the_centre_takes_off_what_written_digits_have_in_common(digits):
    """It is a constant, so it costs no privacy; the mean of real digits becomes shorter by it."""
    lengths = {}
    for centre in ("none", "strokes"):
        chosen = make_map("scattering", digits.feature_names, {"scattering_scale": 1, "scattering_centre": centre})
        check_one_example_at_a_time(chosen, digits.features[:4], digits.feature_names)
        mean = chosen.rows(digits.features, digits.feature_names)[:, :-1].mean(axis=0)
        lengths[centre] = np.linalg.norm(mean)
    assert lengths["strokes"] < 0.9 * lengths["none"]


def test_whether_a_map_is_refused_does_not_depend_on_the_rows(digits):
    """One row is not finite after the map: the check uses made-up rows, and reveals nothing about this one."""
    from fedpdm.data.prepare import prepare

    config = load_config("demo", ["data.features=fourier", "data.scaling=none", "data.fourier_count=4", "data.basis_size=4"])
    odd = digits.features[:6].copy()
    odd[2] = np.inf
    with np.errstate(all="ignore"):
        mapped = prepare(config, digits._replace(features=odd)).features
    assert not np.isfinite(mapped[2]).all(), "the row is one that a check on it would refuse"
    assert np.isfinite(np.delete(mapped, 2, axis=0)).all()
