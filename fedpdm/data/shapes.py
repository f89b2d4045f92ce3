"""Made-up filled shapes: images drawn by a formula, so the directions in which they differ are public.

They replace photographs and drawings of things, as pen strokes (`fedpdm.data.strokes`) replace handwriting.
"""

import numpy as np

__all__ = ["shape_images"]

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
WAVES = 4  # of an outline around its circle
SMALLEST, LARGEST = 0.15, 0.48  # half the height and half the width of a shape, as shares of the image


def shape_images(height: int, width: int, count: int) -> np.ndarray:
    """Draw images of one or two overlapping filled shapes with shading and stripes.

    The numbers come from an even sequence (multiples of square roots of primes), as for `stroke_images`: every machine and
    every release draws the same images.

    Parameters
    ----------
    height, width : int
        Size of an image in pixels.
    count : int
        Number of images.

    Returns
    -------
    ndarray
        [count, height, width], float32, in [0, 1].

    Examples
    --------
    >>> images = shape_images(28, 28, 4)
    >>> images.shape, bool((images >= 0).all() and (images <= 1).all())
    ((4, 28, 28), True)
    """
    row = (np.arange(height)[:, None] + 0.5) / height - 0.5
    column = (np.arange(width)[None, :] + 0.5) / width - 0.5
    even = (np.arange(1, 2 * count + 1)[:, None] * np.sqrt(PRIMES)) % 1
    images = np.zeros((count, height, width), np.float32)
    for image, first, second in zip(images, even[::2], even[1::2], strict=True):
        image[:] = _shape(row, column, first, min(height, width))
        if second[0] < 0.5:  # every other image has a second shape over the first
            other = _shape(row, column, second, min(height, width))
            np.copyto(image, other, where=other > 0)
    return images


def _shape(row: np.ndarray, column: np.ndarray, numbers: np.ndarray, side: int) -> np.ndarray:
    """Draw one blob: a circle with a wavy outline, stretched, shaded along one direction, sometimes striped."""
    centre_row, centre_column = 0.2 * (numbers[1:3] - 0.5)
    half_height, half_width = SMALLEST + (LARGEST - SMALLEST) * numbers[3:5]
    y, x = (row - centre_row) / half_height, (column - centre_column) / half_width
    angle, radius = np.arctan2(y, x), np.sqrt(x**2 + y**2)
    corners = 2 + 6 * numbers[5]  # from a circle to nearly a rectangle
    outline = (np.abs(np.cos(angle)) ** corners + np.abs(np.sin(angle)) ** corners) ** (-1 / corners)
    for wave in range(WAVES):
        outline = outline + 0.15 * numbers[6 + wave] * np.cos((wave + 1) * angle + 2 * np.pi * numbers[10 + wave])
    inside = np.clip(0.5 + side * min(half_height, half_width) * (outline - radius), 0, 1)
    turn = 2 * np.pi * numbers[14]
    along = np.cos(turn) * row + np.sin(turn) * column
    shade = 0.35 + 0.5 * numbers[15] + 0.6 * (numbers[16] - 0.5) * 2 * along
    if numbers[17] < 0.4:
        stripes = np.cos(2 * np.pi * (3 + 9 * numbers[18]) * along)
        shade = shade + 0.35 * numbers[19] * stripes
    return (inside * np.clip(shade, 0.05, 1)).astype(np.float32)
