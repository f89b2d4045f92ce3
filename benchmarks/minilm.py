"""MiniLM as one ONNX graph, from the weights of sentence-transformers/all-MiniLM-L6-v2: for `benchmarks/encoders.py`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

LAYERS, HEADS, SIZE = 6, 12, 384
TOKENISER = "ai.onnx.contrib"  # of onnxruntime-extensions


class Builder:
    """Nodes and constants of a graph, added one by one."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights, self.nodes, self.constants = weights, [], []

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        """Add a constant."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def add(self, operation: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        """Add a node with one output."""
        name = out or f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, list(inputs), [name], **attributes))
        return name

    def linear(self, rows: str, name: str) -> str:
        """Add a layer of the weights."""
        product = self.add("MatMul", rows, self.constant(self.weights[f"{name}.weight"].T))
        return self.add("Add", product, self.constant(self.weights[f"{name}.bias"]))

    def normal(self, rows: str, name: str) -> str:
        """Add a layer norm of the weights."""
        scale, shift = (self.constant(self.weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return self.add("LayerNormalization", rows, scale, shift, axis=-1, epsilon=1e-12)

    def layer(self, rows: str, name: str) -> str:
        """Add a layer: attention, then two linear ones."""
        split = self.constant([1, -1, HEADS, SIZE // HEADS], np.int64)
        query, key, value = (
            self.add("Transpose", self.add("Reshape", self.linear(rows, f"{name}.attention.self.{part}"), split), perm=perm)
            for part, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scores = self.add("Mul", self.add("MatMul", query, key), self.constant((SIZE // HEADS) ** -0.5))
        mixed = self.add("Transpose", self.add("MatMul", self.add("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        mixed = self.add("Reshape", mixed, self.constant([1, -1, SIZE], np.int64))
        seen = self.normal(
            self.add("Add", self.linear(mixed, f"{name}.attention.output.dense"), rows), f"{name}.attention.output.LayerNorm"
        )
        inner = self.linear(seen, f"{name}.intermediate.dense")
        bell = self.add("Add", self.add("Erf", self.add("Mul", inner, self.constant(2**-0.5))), self.constant(1.0))
        inner = self.add("Mul", self.add("Mul", inner, self.constant(0.5)), bell)
        return self.normal(self.add("Add", self.linear(inner, f"{name}.output.dense"), seen), f"{name}.output.LayerNorm")


def build(weights: Mapping[str, np.ndarray], vocabulary: bytes, length: int) -> bytes:
    """Build the encoder: one text at a time, so that no text pads another.

    Parameters
    ----------
    weights : mapping of str to ndarray
        The weights by name.
    vocabulary : bytes
        The word pieces, one per line.
    length : int
        The most tokens of a text.

    Returns
    -------
    bytes
        The ONNX file: from "text" [1] to "vector" [1, 384].
    """
    graph = Builder(weights)
    options = {"vocab_file": vocabulary, "do_lower_case": 1, "strip_accents": 1, "max_length": length}
    options["truncation_strategy_name"] = "longest_first"
    graph.nodes.append(helper.make_node("BertTokenizer", ["text"], ["tokens", "types", "mask"], domain=TOKENISER, **options))
    first, axis = (graph.constant([number], np.int64) for number in (0, 0))
    tokens = graph.add("Unsqueeze", graph.add("Slice", "tokens", first, graph.constant([length], np.int64)), axis)
    count = graph.add("Shape", tokens, start=1, end=2)
    places = graph.add("Slice", graph.constant(weights["embeddings.position_embeddings.weight"]), first, count)
    words = graph.add("Gather", graph.constant(weights["embeddings.word_embeddings.weight"]), tokens)
    rows = graph.add(
        "Add", words, graph.add("Add", places, graph.constant(weights["embeddings.token_type_embeddings.weight"][0]))
    )
    rows = graph.normal(rows, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        rows = graph.layer(rows, f"encoder.layer.{layer}")
    graph.add("ReduceMean", rows, out="vector", axes=[1], keepdims=0)
    inputs = [helper.make_tensor_value_info("text", TensorProto.STRING, [1])]
    outputs = [helper.make_tensor_value_info("vector", TensorProto.FLOAT, [1, SIZE])]
    made = helper.make_graph(graph.nodes, "minilm", inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(TOKENISER, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=8).SerializeToString()
