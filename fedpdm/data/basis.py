r"""A public basis: the few directions in which made-up or public examples differ most.

Every direction of the features gets noise. Features that are projected onto a basis have fewer, so the same guarantee costs
less accuracy, and messages and models are smaller. The basis is a function of made-up images or of a public file alone, never
of a private row, so it costs no privacy.

With $V$ the principal directions of the public rows $f$ (at norm 1, minus their mean $c$) and $w$ the variances along them,
an example becomes

$$z_j = (w_j + 0.001\, w_1)^{-1/4}\; V_j^\top (f - c), \qquad z \leftarrow z / \|z\|.$$

The power $-1/4$ whitens by half: full whitening would lift directions that hold little but noise.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedpdm.data.shapes import shape_images
from fedpdm.data.strokes import stroke_images
from fedpdm.errors import ConfigError

__all__ = ["MOST", "VERSION", "Basis", "as_array", "as_basis", "drawn_rows", "principal_basis", "spectrum", "unit_rows"]

COUNT = 3000  # made-up images
MOST = 400  # directions that are found and stored; fewer are the first of them
FLOOR, POWER = 0.001, -0.25
LEAST_VARIANCE = 1e-12  # of rows at norm 1 in float32: what is below is rounding
PART = 4096  # rows or columns that are in memory in float64 at a time
VERSION = 4  # part of the cache's key: raise it whenever drawings or directions come out different

# The drawing function of each name; all return [count, height, width] in [0, 1].
_DRAWN: dict[str, Callable[[int, int, int], np.ndarray]] = {
    "strokes": stroke_images,
    "shapes": lambda height, width, count: np.concatenate(
        [shape_images(height, width, count - count // 4), stroke_images(height, width, count // 4)]
    ),
}


class Basis(NamedTuple):
    """A projection of features at norm 1.

    Attributes
    ----------
    centre : ndarray
        [m], the common part of the public examples, which is subtracted first.
    directions : ndarray
        [m, size], scaled as in the module's docstring.
    """

    centre: np.ndarray
    directions: np.ndarray

    def project(self, features: np.ndarray) -> np.ndarray:
        """Project rows of any positive scale; the projected rows do not have norm 1 yet."""
        return (unit_rows(features) - self.centre) @ self.directions

    def first(self, size: int) -> "Basis":
        """Return the basis of the first directions."""
        return self._replace(directions=self.directions[:, :size])


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Scale every row to norm 1; a row of zeros stays.

    Parameters
    ----------
    rows : ndarray
        [rows, columns].

    Returns
    -------
    ndarray
        The scaled rows.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return rows / np.maximum(norms, 1e-12)[:, None]


def drawn_rows(name: str, height: int, width: int, depth: int, count: int = COUNT) -> np.ndarray:
    """Draw made-up images as rows of pixels; if there are several channels, in two colours each.

    Parameters
    ----------
    name : str
        A word of `fedpdm.choices.words.DRAWINGS`.
    height, width, depth : int
        Size of the images and number of channels.
    count : int
        Number of images.

    Returns
    -------
    ndarray
        [count, height * width * depth].
    """
    drawn = _DRAWN[name](height, width, count).reshape(count, -1)
    if depth == 1:
        return drawn
    paper, ink = _colours(count, depth)
    return (paper[:, None] + (ink - paper)[:, None] * drawn[:, :, None]).reshape(count, -1).astype(np.float32)


def _colours(count: int, depth: int) -> np.ndarray:
    """Return [2, count, depth] values in [0, 1]: multiples of square roots, of other primes than those of the drawings."""
    roots = np.sqrt([number for number in range(73, 400) if all(number % other for other in range(2, 20))][: 2 * depth])
    return np.moveaxis((np.arange(1, count + 1)[:, None] * roots % 1).reshape(count, 2, depth), 1, 0)


def principal_basis(features: np.ndarray, size: int) -> Basis:
    """Find the basis of these public features.

    Parameters
    ----------
    features : ndarray
        [rows, m], of public or made-up examples; rows are scaled to norm 1 first.
    size : int
        The most directions; there are at most as many as columns, and as rows minus one.

    Returns
    -------
    Basis
        The same for the same features, up to rounding: signs are fixed.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(50, 8)) * np.arange(8, 0, -1)
    >>> basis = principal_basis(rows, 3)
    >>> basis.directions.shape, bool(np.abs(basis.directions.T @ basis.directions)[0, 1] < 1e-6)
    ((8, 3), True)
    """
    if len(features) < 2:
        raise ConfigError(f"A basis needs at least 2 public rows, but there are {len(features)}: give more.")
    return as_basis(_decompose(features, min(size, len(features) - 1, features.shape[1])))


def spectrum(basis: Basis) -> np.ndarray:
    """Return the variance of the public rows along every direction, after the scaling: what half whitening left of it.

    Parameters
    ----------
    basis : Basis
        The basis.

    Returns
    -------
    ndarray
        [size], falling, up to rounding.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(50, 8)) * np.arange(8, 0, -1)
    >>> basis = principal_basis(rows, 3)
    >>> bool(np.allclose(spectrum(basis), basis.project(rows).var(axis=0), rtol=1e-4))
    True
    """
    squares = (basis.directions.astype(np.float64) ** 2).sum(axis=0)  # (w_j + FLOOR w_1)^(2 POWER)
    lifted = squares ** (0.5 / POWER)
    return np.maximum(lifted - lifted[0] * FLOOR / (1 + FLOOR), 0) * squares


def as_basis(kept: np.ndarray) -> Basis:
    """Read a basis from one array.

    Parameters
    ----------
    kept : ndarray
        The centre, then one row per direction.

    Returns
    -------
    Basis
        The basis.
    """
    return Basis(kept[0], kept[1:].T)


def as_array(basis: Basis) -> np.ndarray:
    """Write a basis as one array, for the cache.

    Parameters
    ----------
    basis : Basis
        The basis.

    Returns
    -------
    ndarray
        The centre, then one row per direction.
    """
    return np.concatenate([basis.centre[None], basis.directions.T])


def _decompose(features: np.ndarray, size: int) -> np.ndarray:
    """Compute the centre, then one row per direction. Only parts are ever in float64: the features may take gigabytes."""
    from scipy.linalg import eigh  # slow to import, and the results are kept

    wide = len(features) < features.shape[1]  # then the matrix of the rows is the smaller one
    places = [slice(start, start + PART) for start in range(0, max(features.shape), PART)]
    norms = np.concatenate([np.linalg.norm(part.astype(np.float64), axis=1) for part in np.array_split(features, 8)])
    scale = 1 / np.maximum(norms, 1e-12)
    centre = np.concatenate([scale @ features[:, place] for place in places]) / len(features)

    def moved(place: slice) -> np.ndarray:
        if wide:
            return features[:, place] * scale[:, None] - centre[place]
        return features[place] * scale[place, None] - centre

    gram = np.zeros((min(features.shape), min(features.shape)))
    for place in places:
        part = moved(place)
        gram += part @ part.T if wide else part.T @ part
    last = len(gram) - 1
    variances, vectors = eigh(gram / len(features), subset_by_index=[last - size + 1, last])
    variances, vectors = np.maximum(variances[::-1], 0), vectors[:, ::-1]
    if variances[0] < LEAST_VARIANCE:
        raise ConfigError(
            f"The {len(features)} public rows of the basis are all alike behind the feature map, so there are no directions in "
            "which they differ: give rows that differ."
        )
    if wide:
        vectors = np.concatenate([moved(place).T @ vectors for place in places])
        vectors /= np.maximum(np.linalg.norm(vectors, axis=0), 1e-300)
    largest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.sign(vectors[largest, np.arange(size)])
    directions = vectors * (variances + FLOOR * variances[0]) ** POWER
    return np.concatenate([centre[None], directions.T]).astype(np.float32)
