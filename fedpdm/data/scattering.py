"""Wavelet scattering of images: a public map of one image, stable under small shifts and deformations, with nothing fitted.

With Morlet wavelets psi (scale 2^j, angle t) and a Gaussian phi of scale 2^J, the scattering of an image x is

    order 0: x * phi      order 1: |x * psi_jt| * phi      order 2: ||x * psi_jt| * psi_ks| * phi  for k > j

sampled at every 2^J-th pixel. |x * psi_jt| is sampled at every 2^j-th pixel, which is fine enough.

References
----------
Joan Bruna, Stéphane Mallat: Invariant scattering convolution networks (2013).
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpdm.errors import ConfigError

__all__ = ["ANGLES", "GROUP_FLOOR", "Bank", "filter_bank", "morlet", "gaussian", "groups_of_paths", "paths", "scatter"]

ANGLES = 8
WIDTH = 0.8  # standard deviation of the finest wavelet's envelope, in pixels
GAIN = 0.98  # of the wavelets, so that together with the Gaussian no frequency gains energy
FREQUENCY = 3 * np.pi / 4  # of the finest wavelet, in radians per pixel
SLANT = 4 / ANGLES  # length of an envelope along its wave over the length across it
GROUP_FLOOR = 1e-6  # the smallest variance of a group of channels: fainter ones are not amplified
CHUNK = 64  # images per call: always the same number, so that an image's features cannot depend on the number of images

Array = jax.Array | np.ndarray
Arrays = tuple[Array, ...]
Smoothers = tuple[tuple[Array, Array], ...]
Padding = tuple[tuple[int, int], tuple[int, int]]


class Bank(NamedTuple):
    """The filters for images of one size, all real in frequency.

    Attributes
    ----------
    wavelets : tuple of ndarray
        At resolution r (every 2^r-th pixel): [scales above, angles, height, width], the Fourier transforms of psi_jt for
        j = r..J-1.
    smoothers : tuple of (ndarray, ndarray)
        At resolution r: matrices that convolve with phi, sample and cut off the margin, for rows and for columns.
    padding : tuple of (int, int)
        Pixels of mirrored margin before and after, for rows and for columns.
    """

    wavelets: tuple[np.ndarray, ...]
    smoothers: tuple[tuple[np.ndarray, np.ndarray], ...]
    padding: tuple[tuple[int, int], tuple[int, int]]


def morlet(height: int, width: int, scale: float, angle: float) -> np.ndarray:
    """Compute the periodic wavelet (wave - mean) * envelope; it sums to zero.

    Parameters
    ----------
    height, width : int
        Size of the grid. Its origin is pixel (0, 0).
    scale : float
        2^j. The envelope's width is 0.8 scale along the wave and twice that across; the frequency is 3 pi/4 / scale.
    angle : float
        Direction of the wave, in radians.

    Returns
    -------
    ndarray
        [height, width], complex.
    """
    wave, envelope = np.zeros((height, width), complex), np.zeros((height, width))
    reach = int(np.ceil(5 * WIDTH / SLANT * scale / min(height, width)))
    for shift in np.ndindex(2 * reach + 1, 2 * reach + 1):
        # whole periods around the grid: the wave continues from one edge on the opposite one
        row = np.arange(height)[:, None] + (shift[0] - reach) * height
        column = np.arange(width) + (shift[1] - reach) * width
        along = np.cos(angle) * row + np.sin(angle) * column
        across = np.cos(angle) * column - np.sin(angle) * row
        bump = np.exp(-(along**2 + (SLANT * across) ** 2) / (2 * (WIDTH * scale) ** 2))
        envelope += bump
        wave += bump * np.exp(1j * FREQUENCY / scale * along)
    return (wave - wave.sum() / envelope.sum() * envelope) * SLANT / (2 * np.pi * (WIDTH * scale) ** 2)


def gaussian(size: int, scale: float) -> np.ndarray:
    """Compute a periodic Gaussian of width 0.4 scale on a line; it sums to one.

    Parameters
    ----------
    size : int
        Number of points; the origin is the first.
    scale : float
        2^j.

    Returns
    -------
    ndarray
        [size].
    """
    reach = int(np.ceil(5 * WIDTH * scale / size))
    points = np.arange(size) + size * np.arange(-reach, reach + 1)[:, None]
    bell = np.exp(-(points**2) / (2 * (WIDTH * scale / 2) ** 2)).sum(0)
    return bell / bell.sum()


@functools.lru_cache(maxsize=8)
def filter_bank(height: int, width: int, scale: int) -> Bank:
    """Make the filters for images of one size, on a grid with a margin that suits the FFT.

    Parameters
    ----------
    height, width : int
        Size of the images.
    scale : int
        J, the number of scales.

    Returns
    -------
    Bank
        The filters.
    """
    if not 1 <= scale <= 6 or min(height, width) < 2**scale:
        raise ConfigError(
            f"data.scattering_scale={scale} does not fit images of {height} x {width} pixels: it must be at least 1 and at "
            f"most 6, and 2^{scale} = {2**scale} at most the shorter side; choose a smaller one."
        )
    grid = tuple(_grid_size(size, 2**scale) for size in (height, width))
    wavelets = []
    for resolution in range(scale):
        rows, columns = (size >> resolution for size in grid)
        kinds = [
            np.fft.fft2(morlet(rows, columns, 2**finer, np.pi * turn / ANGLES)).real
            for finer in range(scale - resolution)
            for turn in range(ANGLES)
        ]
        stacked = np.stack(kinds).reshape(-1, ANGLES, rows, columns)
        wavelets.append((GAIN * stacked).astype(np.float32))
    smoothers = tuple(
        (_smoother(height, grid[0], scale, resolution), _smoother(width, grid[1], scale, resolution))
        for resolution in range(scale)
    )
    margin = 2**scale
    padding = ((margin, grid[0] - height - margin), (margin, grid[1] - width - margin))
    return Bank(tuple(wavelets), smoothers, padding)


def paths(scale: int) -> list[tuple[int, ...]]:
    """List the channels in their order.

    Parameters
    ----------
    scale : int
        J, the number of scales.

    Returns
    -------
    list of tuple
        (), (j, angle) or (j, angle, k, angle).

    Examples
    --------
    >>> len(paths(2)), len(paths(3))
    (81, 217)
    """
    found: list[tuple[int, ...]] = [()]
    for j in range(scale):
        found += [(j, angle) for angle in range(ANGLES)]
        for k in range(j + 1, scale):
            found += [(j, angle, k, other) for angle in range(ANGLES) for other in range(ANGLES)]
    return found


def groups_of_paths(scale: int) -> list[int]:
    """Count the channels that have the same order and scales, in the order of `paths`.

    Parameters
    ----------
    scale : int
        J, the number of scales.

    Returns
    -------
    list of int
        Sizes of consecutive groups.

    Examples
    --------
    >>> groups_of_paths(2)
    [1, 8, 64, 8]
    """
    return [len(list(alike)) for _, alike in itertools.groupby(paths(scale), key=lambda path: path[::2])]


def scatter(images: np.ndarray, scale: int = 2) -> np.ndarray:
    """Compute the scattering of images, each image by itself.

    Parameters
    ----------
    images : ndarray
        [examples, height, width].
    scale : int
        J, the number of scales.

    Returns
    -------
    ndarray
        [examples, channels, rows, columns]. The channels are those of `paths`; rows and columns are the height and width over
        2^J, rounded up.

    Examples
    --------
    >>> scatter(np.ones((3, 28, 28), np.float32)).shape
    (3, 81, 7, 7)
    """
    bank = filter_bank(*images.shape[1:], scale)
    out = np.empty((len(images), len(paths(scale)), *(len(matrix) for matrix in bank.smoothers[0])), np.float32)
    for start in range(0, len(images), CHUNK):
        part = np.asarray(images[start : start + CHUNK], np.float32)
        full = np.pad(part, ((0, CHUNK - len(part)), (0, 0), (0, 0)))
        done = _scatter_chunk(full, bank.wavelets, bank.smoothers, bank.padding)
        out[start : start + CHUNK] = np.asarray(done)[: len(part)]
    return out


@functools.partial(jax.jit, static_argnames="padding")
def _scatter_chunk(images: Array, wavelets: Arrays, smoothers: Smoothers, padding: Padding) -> Array:
    padded = jnp.pad(images, ((0, 0), *padding), mode="symmetric")
    channels = [_smooth(padded, smoothers[0])[:, None]]
    spectrum = jnp.fft.fft2(padded)
    for j in range(len(wavelets)):
        first = _wave_energy(spectrum, wavelets[0][j], j)
        channels.append(_smooth(first, smoothers[j]))
        if j + 1 == len(wavelets):
            break
        spectra = jnp.fft.fft2(first)
        for k in range(j + 1, len(wavelets)):
            second = _wave_energy(spectra, wavelets[j][k - j], k - j)
            channels.append(_smooth(second.reshape(len(images), -1, *second.shape[-2:]), smoothers[k]))
    return jnp.concatenate(channels, axis=1)


def _wave_energy(spectrum: Array, wavelets: Array, halvings: int) -> Array:
    """Return |image * wavelet| at every 2^halvings-th pixel, for every angle (a new axis before the last two)."""
    product = spectrum[..., None, :, :] * wavelets
    rows, columns = (size >> halvings for size in product.shape[-2:])
    # sampling in space is folding in frequency
    folds = product.reshape(*product.shape[:-2], 2**halvings, rows, 2**halvings, columns)
    return jnp.abs(jnp.fft.ifft2(folds.mean(axis=(-4, -2))))


def _smooth(images: Array, smoother: tuple[Array, Array]) -> Array:
    """Apply both matrices as flat products: XLA's batched ones are several times slower on a CPU."""
    rows, columns = smoother
    half = images.reshape(-1, images.shape[-1]) @ columns.T
    turned = half.reshape(-1, images.shape[-2], len(columns)).swapaxes(1, 2)
    both = turned.reshape(-1, images.shape[-2]) @ rows.T
    return both.reshape(*images.shape[:-2], len(columns), len(rows)).swapaxes(-1, -2)


def _grid_size(size: int, step: int) -> int:
    """Return the smallest multiple of `step` with a margin of `step` on both sides and no other prime factor above 5."""
    blocks = -(-size // step) + 2
    while max(_prime_factors(blocks)) > 5:
        blocks += 1
    return blocks * step


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [1], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def _smoother(size: int, grid: int, scale: int, resolution: int) -> np.ndarray:
    """Return the matrix [outputs, grid at this resolution] of phi's convolution, sampled, without the margin."""
    points, step = grid >> resolution, 2 ** (scale - resolution)
    bell = gaussian(points, step)
    outputs = np.arange(1, 1 + -(-size // 2**scale)) * step  # the first sample lies in the margin
    return bell[(outputs[:, None] - np.arange(points)) % points].astype(np.float32)
