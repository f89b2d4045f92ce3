"""Pen strokes drawn by a formula, so their mean is public.

Written digits and letters have much in common that does not help to tell them apart: ink in the middle, none at the margin,
lines of about one width. In features of norm 1 that common part is wasted, since the noise is in proportion to the norm. The
mean of the strokes drawn here estimates the common part, and can be subtracted without looking at anybody's image.
"""

import numpy as np

__all__ = ["stroke_images"]

# Length of the longer side of a stroke, and half the pen's width, as shares of the image's side: signs are scaled to a box and
# centred. (This scaling was chosen with a look at the rest of MNIST's mean: see docs/features.md.)
BOX, PEN = 0.64, 0.046
POINTS = (3, 6)
SAMPLES = 30  # of every bend of a stroke
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)


def stroke_images(height: int, width: int, count: int) -> np.ndarray:
    """Draw images of one smooth stroke each, always the same ones.

    The points of a stroke come from an even sequence (multiples of square roots of primes). A random generator is not used,
    since its stream may differ between releases.

    Parameters
    ----------
    height, width : int
        Size of the images.
    count : int
        Number of images.

    Returns
    -------
    ndarray
        [count, height, width] in [0, 1].

    Examples
    --------
    >>> images = stroke_images(28, 28, 4)
    >>> images.shape, float(images.max()), bool(images[:, 0].any())
    ((4, 28, 28), 1.0, False)
    """
    row = (np.arange(height)[:, None, None] + 0.5) / height
    column = (np.arange(width)[:, None] + 0.5) / width
    even = (np.arange(1, count + 1)[:, None] * np.sqrt(PRIMES)) % 1
    images = np.empty((count, height, width), np.float32)
    for image, numbers in zip(images, even, strict=True):
        points = POINTS[0] + int(numbers[0] * (POINTS[1] - POINTS[0] + 1))
        path = _bend(np.stack([numbers[1 : 1 + points], 0.7 * numbers[7 : 7 + points]], axis=1))  # higher than wide
        low, high = path.min(axis=0), path.max(axis=0)
        path = 0.5 + BOX * (path - (low + high) / 2) / (high - low).max()
        away = np.sqrt(((row - path[:, 0]) ** 2 + (column - path[:, 1]) ** 2).min(axis=2))
        side = min(height, width)
        np.clip(0.5 + side * (PEN - away), 0, 1, out=image)  # the edge is one pixel wide
    return images


def _bend(points: np.ndarray) -> np.ndarray:
    """Return a smooth line from the first point to the last: parabolas between the midpoints, bent towards the points."""
    middles = (points[1:] + points[:-1]) / 2
    middles[0], middles[-1] = points[0], points[-1]
    time = np.linspace(0, 1, SAMPLES)[:, None]
    pieces = [
        (1 - time) ** 2 * start + 2 * time * (1 - time) * bend + time**2 * stop
        for start, bend, stop in zip(middles[:-1], points[1:-1], middles[1:], strict=True)
    ]
    return np.concatenate(pieces)
