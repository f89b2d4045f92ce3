"""Scattering by its definition: direct sums in space, covariance, energy."""

import numpy as np
import pytest

from fedpdm.data.features import make_map
from fedpdm.data.scattering import ANGLES, GAIN, filter_bank, gaussian, morlet, paths, scatter
from fedpdm.errors import ConfigError


def convolve(image, kernel):
    """The periodic convolution, summed pixel by pixel in space."""
    total = np.zeros(image.shape, complex)
    for row, column in np.ndindex(*kernel.shape):
        total += kernel[row, column] * np.roll(image, (row, column), (0, 1))
    return total


def waves(image, j, angle, resolution):
    """|image * psi| at every 2^(j - resolution)-th pixel of an image that is at this resolution."""
    finer = 2 ** (j - resolution)
    full = np.abs(convolve(image, GAIN * morlet(*image.shape, finer, np.pi * angle / ANGLES)))
    return full[::finer, ::finer]


def smoothed(image, scale, resolution, height, width):
    """image * phi at every 2^scale-th original pixel, without the margin."""
    step = 2 ** (scale - resolution)
    bell = np.outer(gaussian(image.shape[0], step), gaussian(image.shape[1], step))
    full = convolve(image, bell).real[::step, ::step]
    return full[1 : 1 + -(-height // 2**scale), 1 : 1 + -(-width // 2**scale)]


@pytest.mark.parametrize(("height", "width", "scale"), [(8, 8, 2), (7, 10, 1), (9, 12, 2), (8, 8, 3)])
def test_scattering_is_what_the_definition_says(height, width, scale):
    image = np.random.default_rng(0).uniform(size=(height, width)).astype(np.float32)
    padded = np.pad(image, filter_bank(height, width, scale).padding, mode="symmetric").astype(float)
    got = scatter(image[None], scale)[0]
    chosen = {path for index, path in enumerate(paths(scale)) if index % 11 == 0 or len(path) < 2}
    for channel, path in enumerate(paths(scale)):
        if path not in chosen:
            continue
        layer, resolution = padded, 0
        for j, angle in zip(path[::2], path[1::2], strict=True):
            layer, resolution = waves(layer, j, angle, resolution), j
        np.testing.assert_allclose(
            got[channel], smoothed(layer, scale, resolution, height, width), atol=2e-6, err_msg=str(path)
        )


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_there_is_a_channel_for_every_path_and_a_sample_for_every_block(scale):
    got = scatter(np.ones((2, 9, 17), np.float32), scale)
    assert got.shape == (2, len(paths(scale)), -(-9 // 2**scale), -(-17 // 2**scale))
    assert len(paths(scale)) == 1 + ANGLES * scale + ANGLES**2 * scale * (scale - 1) // 2


def test_a_shift_of_the_image_shifts_its_scattering():
    image = np.zeros((1, 48, 48), np.float32)
    image[:, 20:28, 20:28] = np.random.default_rng(1).uniform(size=(8, 8))
    before, after = (scatter(np.roll(image, shift, (1, 2)), 2) for shift in ((0, 0), (4, -8)))
    np.testing.assert_allclose(before[:, :, :-1, 2:], after[:, :, 1:, :-2], atol=1e-6)


def test_a_shift_of_a_pixel_changes_scattering_less_than_the_image():
    image = np.zeros((1, 32, 32), np.float32)
    image[:, 10:22, 10:22] = np.random.default_rng(1).uniform(size=(12, 12))
    moved = np.roll(image, 1, 2)

    def change(a, b):
        return np.linalg.norm(a - b) / np.linalg.norm(a)

    assert change(scatter(image), scatter(moved)) < 0.5 * change(image, moved)


def test_a_quarter_turn_of_the_image_turns_the_angles():
    image = np.zeros((1, 32, 32), np.float32)
    image[:, 12:21, 12:21] = np.random.default_rng(2).uniform(size=(9, 9))
    # the transpose swaps angle t with pi/2 - t, and rows with columns
    before, after = (scatter(part, 1)[0] for part in (image, image.transpose(0, 2, 1)))
    for path, channel in zip(paths(1)[1:], after[1:], strict=True):
        mirrored = paths(1).index((0, (ANGLES // 2 - path[1]) % ANGLES))
        np.testing.assert_allclose(channel, before[mirrored].T, atol=1e-6)


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (32, 20)])
@pytest.mark.parametrize("scale", [1, 2, 3])
def test_no_frequency_gains_energy_and_wavelets_have_mean_zero(size, scale):
    bank = filter_bank(*size, scale)
    for resolution, wavelets in enumerate(bank.wavelets):
        assert np.abs(wavelets[..., 0, 0]).max() < 1e-6
        energy = (wavelets.astype(float) ** 2).sum((0, 1))
        both = (energy + np.roll(energy[::-1, ::-1], (1, 1), (0, 1))) / 2  # a real image has both signs of a frequency
        bells = [np.abs(np.fft.fft(gaussian(points, 2 ** (scale - resolution)))) ** 2 for points in energy.shape]
        total = both + np.outer(*bells)
        assert total.max() <= 1 + 1e-6
        assert total.min() > 0.1  # and none is lost


def test_the_filters_are_real_in_frequency_and_sit_where_they_should():
    for angle in (0.0, np.pi / 4, np.pi / 2):
        spectrum = np.fft.fft2(morlet(64, 64, 2, angle))
        assert np.abs(spectrum.imag).max() < 1e-6
        peak = np.unravel_index(spectrum.real.argmax(), spectrum.shape)
        frequency = 2 * np.pi * np.array(peak) / 64
        np.testing.assert_allclose(frequency, 3 * np.pi / 8 * np.array([np.cos(angle), np.sin(angle)]), atol=0.15)
    assert gaussian(30, 4).sum() == pytest.approx(1)
    assert gaussian(30, 4)[2] / gaussian(30, 4)[0] == pytest.approx(np.exp(-(2**2) / (2 * 1.6**2)))


def test_scattering_does_not_spread_images_apart():
    rng = np.random.default_rng(3)
    stripes = np.sin(np.add.outer(np.arange(16), 2 * np.arange(16)) * 0.6)
    images = np.stack(
        [np.ones((16, 16)), np.eye(16), np.eye(1, 256, 136).reshape(16, 16), stripes, *rng.normal(size=(5, 16, 16))]
    )
    for scale in (1, 2):
        padding = filter_bank(16, 16, scale).padding
        waves_of = scatter(images.astype(np.float32), scale)
        for one, other in np.ndindex(len(images), len(images)):
            apart = np.linalg.norm(np.pad(images[one] - images[other], padding, mode="symmetric"))
            # one sample stands for 4^scale pixels
            assert 2**scale * np.linalg.norm(waves_of[one] - waves_of[other]) <= apart * (1 + 1e-6)
        assert 2**scale * np.linalg.norm(waves_of[0]) == pytest.approx(16, rel=1e-4)  # a constant image keeps its energy


def test_an_image_s_scattering_is_the_same_bit_for_bit_in_any_batch():
    images = np.random.default_rng(4).uniform(size=(70, 12, 12)).astype(np.float32)
    together = scatter(images)
    for row in (0, 40, 69):
        np.testing.assert_array_equal(scatter(images[row : row + 1])[0], together[row])
    assert scatter(images[:0]).shape == (0, 81, 3, 3)


def colour_names(height, width):
    return [f"pixel {row},{column},{channel}" for row in range(height) for column in range(width) for channel in range(3)]


def test_a_grey_image_has_the_same_features_in_every_channel():
    grey = np.random.default_rng(5).uniform(size=(3, 8, 12)).astype(np.float32)
    names, grey_names = colour_names(8, 12), [f"pixel {row},{column}" for row in range(8) for column in range(12)]
    chosen = make_map("auto", names, {"scattering_scale": 1})
    got = chosen.encode(np.repeat(grey[..., None], 3, axis=3).reshape(3, -1), names)
    alone = chosen.encode(grey.reshape(3, -1), grey_names)
    np.testing.assert_allclose(got, np.concatenate([alone] * 3, axis=1), atol=1e-4)
    assert len(chosen.columns(names)) == got.shape[1]


@pytest.mark.parametrize("basis", ["none", "shapes"])
def test_colours_are_told_apart(basis):
    names = colour_names(8, 8)
    flat = np.repeat([[0.9, 0.2, 0.2], [0.2, 0.9, 0.2]], 64, axis=0).reshape(2, -1).astype(np.float32)
    rows = make_map("scattering", names, {"scattering_scale": 1, "basis": basis, "basis_size": 20}).rows(flat, names)
    assert np.linalg.norm(rows[0] - rows[1]) > 0.5


def test_empty_images_stay_finite():
    names = [f"pixel {row},{column}" for row in range(8) for column in range(8)]
    assert (make_map("scattering", names).rows(np.zeros((2, 64), np.float32), names)[:, :-1] == 0).all()


def test_a_scale_that_does_not_fit_the_image_is_said():
    with pytest.raises(ConfigError, match=r"8 x 8 pixels.*choose a smaller one"):
        scatter(np.zeros((1, 8, 8), np.float32), 4)
