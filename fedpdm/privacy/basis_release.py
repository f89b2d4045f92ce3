r"""A private basis: the second moment of the features, released once with noise, and its strongest directions.

A client releases $M = \frac1n \sum a a^\top$ plus noise, n its public number of slots. As $\|a a^\top\|_F = \|a\|^2 \le R^2$,
one row moves $M$ by $R^2/n$ at most in the Frobenius norm. The upper triangle is sent, with $\sqrt2$ times the entries beside
the diagonal, so that the norm of the sent vector is that of the matrix.

With $V$ the eigenvectors of the clients' mean and $w$ its eigenvalues, the features become
$z_j \propto (w_j + \max(0.001 w_1, \sigma\sqrt{2m}))^{-1/4} V_j^\top a$. The second term is the largest eigenvalue that the
noise alone would have: directions below it are not stretched further.
"""

import numpy as np

from fedpdm.data.basis import FLOOR, POWER
from fedpdm.data.directions import Directions
from fedpdm.errors import ConfigError
from fedpdm.privacy.first_release import FirstRelease, Moments

__all__ = ["WIDEST", "basis_release", "cut_rows", "directions_from", "pack", "unpack"]

WIDEST = 1000  # features: half a million numbers in one message


def pack(matrix: np.ndarray) -> np.ndarray:
    """Write a symmetric matrix as a vector of the same norm.

    Parameters
    ----------
    matrix : ndarray
        [m, m].

    Returns
    -------
    ndarray
        [m (m + 1) / 2].
    """
    return matrix[np.triu_indices(len(matrix))] * _factors(len(matrix))


def unpack(vector: np.ndarray, width: int) -> np.ndarray:
    """Read a symmetric matrix from `pack`.

    Parameters
    ----------
    vector : ndarray
        [m (m + 1) / 2].
    width : int
        m.

    Returns
    -------
    ndarray
        [m, m].

    Examples
    --------
    >>> matrix = np.array([[1.0, 2.0], [2.0, 5.0]])
    >>> bool(np.allclose(unpack(pack(matrix), 2), matrix)), bool(np.isclose(*map(np.linalg.norm, (pack(matrix), matrix))))
    (True, True)
    """
    upper = np.zeros((width, width))
    upper[np.triu_indices(width)] = vector / _factors(width)
    return upper + np.triu(upper, 1).T


def _factors(width: int) -> np.ndarray:
    rows, columns = np.triu_indices(width)
    return np.where(rows == columns, 1.0, 2.0**0.5)


def basis_release(width: int, radius: float, size: int) -> FirstRelease:
    """Describe the release of the second moment.

    Parameters
    ----------
    width : int
        Number of features m.
    radius : float
        R, the bound on every row's norm; rows beyond it are cut here again.
    size : int
        Number of directions that are kept.

    Returns
    -------
    FirstRelease
        The release.

    Formal guarantee
    ----------------
    Relation: add/remove one row of one client, or all rows of one person with weights that add up to 1. Adversary: anyone who
    sees the releases, the server included. The release of a client with noise z R^2/n is 1/z-GDP; with secure sums the same
    holds for the sum over a cohort whose H honest members each add noise of z R^2/sqrt(H) to their sums. Everything computed
    from it (directions, features) is post-processing. Proof: docs/privacy/proofs.md.
    """
    if width > WIDEST:
        raise ConfigError(
            f'data.basis="private" releases the second moment of all features, of which there are {width}: at most {WIDEST}. '
            "Use a public basis (strokes, shapes or a file), or another map."
        )

    def mean(rows: np.ndarray, slots: float, weights: np.ndarray | None) -> np.ndarray:
        exact = cut_rows(rows.astype(np.float64), radius)
        counted = exact if weights is None else exact * weights.astype(np.float64)[:, None]
        return pack(counted.T @ exact) / slots

    def read(values: np.ndarray) -> Directions:
        return Directions(values.reshape(width, size).astype(np.float32), np.zeros((0, 0)))

    return FirstRelease(
        what="second moment of the features",
        bound=radius**2,
        size=width * (width + 1) // 2,
        mean=mean,
        map_of=lambda moments: directions_from(moments, width, size),
        sent=lambda moments: directions_from(moments, width, size).directions.ravel(),
        read=read,
        sent_size=width * size,
    )


def directions_from(moments: Moments, width: int, size: int) -> Directions:
    """Find the directions of a released second moment, scaled so that a typical row has norm 1.

    Parameters
    ----------
    moments : Moments
        The packed mean of the clients' releases, and its noise.
    width, size : int
        Numbers of features and of directions.

    Returns
    -------
    Directions
        The directions, and the released moment without its negative part.
    """
    values, vectors = np.linalg.eigh(unpack(moments.means, width))
    positive = np.maximum(values, 0)
    moment = (vectors * positive) @ vectors.T
    strongest = np.argsort(-values, kind="stable")[:size]
    kept, chosen = vectors[:, strongest], positive[strongest]
    largest = np.abs(kept).argmax(axis=0)
    kept = kept * np.sign(kept[largest, np.arange(len(strongest))])
    floor = max(FLOOR * float(chosen.max(initial=0.0)), moments.noise * (2 * width) ** 0.5, 1e-12)
    scales = (chosen + floor) ** POWER
    typical = max(float((scales**2 * chosen).sum()), 1e-12) ** 0.5
    return Directions((kept * scales / typical).astype(np.float32), moment)


def cut_rows(rows: np.ndarray, radius: float = 1.0) -> np.ndarray:
    """Cut every row by itself to a norm of at most `radius`.

    Parameters
    ----------
    rows : ndarray
        [rows, n].
    radius : float
        The bound.

    Returns
    -------
    ndarray
        The rows.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    # one part in a million below, so that rounding cannot lift a norm above the bound
    factors = np.where(norms > radius * (1 - 1e-6), radius * (1 - 1e-6) / np.maximum(norms, radius * 1e-3), 1.0)
    return rows * factors[:, None].astype(rows.dtype)
