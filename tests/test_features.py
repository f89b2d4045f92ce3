"""Public feature maps: of one example alone, and of norm 1."""

import numpy as np
import pytest
from scipy.ndimage import convolve

from fedpdm.data import load_dataset
from fedpdm.data.features import BIAS, SCALINGS, scale_features
from fedpdm.errors import ConfigError


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


@pytest.mark.parametrize("scaling", SCALINGS)
def test_an_example_s_features_do_not_depend_on_the_others(digits, scaling):
    together = scale_features(digits, scaling).features
    for row in (0, 7, 700):
        alone = scale_features(digits._replace(features=digits.features[row : row + 1]), scaling).features[0]
        np.testing.assert_array_equal(alone, together[row])


@pytest.mark.parametrize("scaling", SCALINGS)
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
