"""The public feature maps as nodes of an ONNX graph: the same functions of one example as in `fedpdm.data`.

Each map adds the features of `rows` [rows, n], without the bias; `map_features` scales them to norm 1.
"""

__all__ = ["map_features", "fourier", "piecewise", "scattering"]

import math
from collections.abc import Sequence

import numpy as np

from fedpdm.choices import FEATURE_MAPS
from fedpdm.data.features import FeatureOptions, basis_of, with_basis_chosen, without_basis
from fedpdm.data.maps import fourier_draws, image_shape, strokes_centre, table_knots
from fedpdm.data.piecewise import Knots, table_plan
from fedpdm.data.scattering import GROUP_FLOOR, filter_bank, groups_of_paths
from fedpdm.export.onnx.graph import Graph


def map_features(graph: Graph, name: str, rows: str, feature_names: Sequence[str], options: FeatureOptions) -> str:
    """Add the public feature map, and its basis if there is one, to a graph.

    Parameters
    ----------
    graph : Graph
        The graph.
    name : str
        Name of the map.
    rows : str
        The node of the features [rows, n], without the bias.
    feature_names : sequence of str
        Their names, without the bias.
    options : FeatureOptions
        Options of the map.

    Returns
    -------
    str
        The node of the mapped features, at norm 1.
    """
    row, options = FEATURE_MAPS.row(name), with_basis_chosen(name, options)
    nodes = row.onnx_nodes()
    if options["basis"] == "none":
        return graph.unit(nodes(graph, rows, feature_names, **row.arguments(options)))
    basis = basis_of(name, tuple(feature_names), options)
    plain = graph.unit(nodes(graph, rows, feature_names, **row.arguments(without_basis(options))))
    moved = graph.add("Sub", plain, graph.constant(basis.centre))
    return graph.unit(graph.add("MatMul", moved, graph.constant(basis.directions)))


def fourier(
    graph: Graph,
    rows: str,
    feature_names: Sequence[str],
    *,
    fourier_count: int,
    fourier_bandwidth: float,
    features_seed: int,
) -> str:
    """Add the random cosines.

    Parameters
    ----------
    graph : Graph
        The graph.
    rows : str
        The node of the features [rows, n], without the bias.
    feature_names : sequence of str
        Their names, without the bias.
    fourier_count, fourier_bandwidth, features_seed : int, float, int
        Options of the map.

    Returns
    -------
    str
        The node of the mapped features.
    """
    directions, shifts = fourier_draws(len(feature_names), fourier_count, fourier_bandwidth, features_seed)
    turned = graph.add("MatMul", graph.unit(rows), graph.constant(directions))
    return graph.add("Cos", graph.add("Add", turned, graph.constant(shifts)))


def piecewise(graph: Graph, rows: str, feature_names: Sequence[str]) -> str:
    """Add the hat functions and the indicators of levels.

    Parameters
    ----------
    graph : Graph
        The graph.
    rows : str
        The node of the features [rows, n], without the bias.
    feature_names : sequence of str
        Their names, without the bias.

    Returns
    -------
    str
        The node of the mapped features.
    """
    blocks = []
    for members, knots in table_plan(feature_names, *table_knots(feature_names)):
        values = graph.add("Gather", rows, graph.constant(members, np.int64), axis=1)
        if knots is None:
            rest = graph.add("Sub", graph.constant(1), graph.sum(values, 1))
            blocks += [rest, values]
        else:
            blocks += _number(graph, values, knots)
    return graph.add("Concat", *blocks, axis=1)


def _number(graph: Graph, scaled: str, knots: Knots) -> list[str]:
    values = graph.add("Add", graph.constant(knots.low), graph.add("Mul", graph.constant(knots.high - knots.low), scaled))
    place, points = values, np.array(knots.points)
    if knots.logarithmic:
        place, points = graph.add("Log", graph.add("Max", values, graph.constant(points[0]))), np.log(points)
    # a hat is the lower one of two lines, cut to [0, 1]; the first hat does not rise, the last one does not fall
    gaps = np.diff(points)
    rise = np.append(0, 1 / gaps), np.append(1, -points[:-1] / gaps)
    fall = np.append(-1 / gaps, 0), np.append(points[1:] / gaps, 1)
    lines = [graph.add("Add", graph.add("Mul", place, graph.constant(a)), graph.constant(b)) for a, b in (rise, fall)]
    shape = graph.add("Clip", graph.add("Min", *lines), graph.constant(0), graph.constant(1))
    if not knots.zero_apart:
        return [shape]
    there = graph.add("Cast", graph.add("Greater", values, graph.constant(0)), to=1)
    return [there, graph.add("Mul", there, shape)]


def scattering(graph: Graph, rows: str, feature_names: Sequence[str], *, scattering_scale: int, scattering_centre: str) -> str:
    """Add the wavelet scattering.

    Parameters
    ----------
    graph : Graph
        The graph.
    rows : str
        The node of the features [rows, n], without the bias.
    feature_names : sequence of str
        Their names, without the bias.
    scattering_scale, scattering_centre : int, str
        Options of the map.

    Returns
    -------
    str
        The node of the mapped features.
    """
    height, width, depth = image_shape(feature_names)
    bank = filter_bank(height, width, scattering_scale)
    images = graph.reshape(rows, -1, height, width, depth)
    images = graph.reshape(graph.add("Transpose", images, perm=[0, 3, 1, 2]), -1, 1, height, width)
    for axis, (size, margin) in enumerate(zip((height, width), bank.padding, strict=True), 2):
        mirrored = np.pad(np.arange(size), margin, mode="symmetric")
        images = graph.add("Gather", images, graph.constant(mirrored, np.int64), axis=axis)
    channels = [_smooth(graph, images, bank.smoothers[0])]
    spectrum = _spectrum(graph, images, bank.wavelets[0].shape[-2:])
    for j in range(len(bank.wavelets)):
        first = _wave_energy(graph, spectrum, bank.wavelets[0][j], j)
        channels.append(_smooth(graph, first, bank.smoothers[j]))
        if j + 1 == len(bank.wavelets):
            break
        spectra = _spectrum(graph, first, bank.wavelets[j].shape[-2:])
        for k in range(j + 1, len(bank.wavelets)):
            second = _wave_energy(graph, spectra, bank.wavelets[j][k - j], k - j)
            channels.append(_smooth(graph, second, bank.smoothers[k]))
    outputs = [len(matrix) for matrix in bank.smoothers[0]]
    waves = graph.reshape(graph.add("Concat", *channels, axis=1), -1, depth, sum(groups_of_paths(scattering_scale)), *outputs)
    groups, start = [], 0
    for count in groups_of_paths(scattering_scale):
        group = graph.add("Slice", waves, *(graph.constant([place], np.int64) for place in (start, start + count, 2)))
        group = graph.add("Sub", group, graph.add("ReduceMean", group, axes=[1, 2, 3, 4]))
        variance = graph.add("ReduceMean", graph.add("Mul", group, group), axes=[1, 2, 3, 4])
        groups.append(graph.add("Div", group, graph.add("Sqrt", graph.add("Max", variance, graph.constant(GROUP_FLOOR)))))
        start += count
    together = graph.reshape(graph.add("Concat", *groups, axis=2), -1, depth * start * math.prod(outputs))
    if scattering_centre != "strokes":
        return together
    return graph.add("Sub", graph.unit(together), graph.constant(strokes_centre(scattering_scale, tuple(feature_names))))


Complex = tuple[str, str]  # real and imaginary part, [images, channels, height, width]


def _waves(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return real and imaginary part of the matrix of a discrete Fourier transform."""
    matrix = np.fft.fft(np.eye(size))
    return matrix.real, matrix.imag


def _transform(graph: Graph, images: Complex | str, shape: Sequence[int], conjugate: bool) -> Complex:
    """Add the two-dimensional Fourier transform by matrix products; `conjugate`: the inverse, unscaled."""
    sign = -1 if conjugate else 1
    (row_real, row_imaginary), (column_real, column_imaginary) = (_waves(size) for size in shape)

    def product(*values: str) -> str:
        return graph.add("MatMul", *values)

    left = graph.constant(row_real), graph.constant(sign * row_imaginary)
    right = graph.constant(column_real.T), graph.constant(sign * column_imaginary.T)
    if isinstance(images, str):
        half = product(left[0], images), product(left[1], images)
    else:
        half = (
            graph.add("Sub", product(left[0], images[0]), product(left[1], images[1])),
            graph.add("Add", product(left[0], images[1]), product(left[1], images[0])),
        )
    return (
        graph.add("Sub", product(half[0], right[0]), product(half[1], right[1])),
        graph.add("Add", product(half[0], right[1]), product(half[1], right[0])),
    )


def _spectrum(graph: Graph, images: str, shape: Sequence[int]) -> Complex:
    return _transform(graph, images, shape, conjugate=False)


def _wave_energy(graph: Graph, spectrum: Complex, wavelets: np.ndarray, halvings: int) -> str:
    """Add |image * wavelet| at every 2^halvings-th pixel, with the angles as further channels."""
    height, width = wavelets.shape[1:]
    rows, columns, folds = height >> halvings, width >> halvings, 2**halvings
    parts = []
    for part in spectrum:
        product = graph.add("Mul", graph.add("Unsqueeze", part, graph.constant([2], np.int64)), graph.constant(wavelets))
        folded = graph.reshape(product, 0, -1, folds, rows, folds, columns)
        parts.append(graph.add("ReduceMean", folded, axes=[2, 4], keepdims=0))
    real, imaginary = _transform(graph, (parts[0], parts[1]), (rows, columns), conjugate=True)
    squares = graph.add("Add", graph.add("Mul", real, real), graph.add("Mul", imaginary, imaginary))
    return graph.add("Div", graph.add("Sqrt", squares), graph.constant(rows * columns))


def _smooth(graph: Graph, images: str, smoother: tuple[np.ndarray, np.ndarray]) -> str:
    rows, columns = smoother
    return graph.add("MatMul", graph.constant(rows), graph.add("MatMul", images, graph.constant(columns.T)))
