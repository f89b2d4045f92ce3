"""Nodes, constants and inputs of an ONNX graph, added one by one."""

__all__ = ["Graph"]

from typing import TYPE_CHECKING, Any

import numpy as np

from fedpdm.version import __version__

if TYPE_CHECKING:
    import onnx

OPSETS = {"": 17, "ai.onnx.ml": 3}


class Graph:
    """Nodes, constants and inputs, added one by one."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.about: dict[str, str] = {}  # metadata of the file

    def input(self, name: str, *shape: int, words: bool = False) -> str:
        from onnx import TensorProto, helper

        kind = TensorProto.STRING if words else TensorProto.FLOAT
        self.inputs.append(helper.make_tensor_value_info(name, kind, ["rows", *shape]))
        return name

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def add(self, operation: str, *inputs: str, out: str | None = None, domain: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = out or f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, list(inputs), [name], domain=domain, **attributes))
        return name

    def ones(self) -> str:
        """A column of ones, as long as the first input."""
        from onnx import helper

        shape = self.add("Shape", self.inputs[0].name, start=0, end=1)
        full = self.add("Concat", shape, self.constant([1], np.int64), axis=0)
        return self.add("ConstantOfShape", full, value=helper.make_tensor("one", 1, [1], [1.0]))

    def unit(self, rows: str) -> str:
        """Rows of norm 1."""
        return self.add("Div", rows, self.add("Max", self.norms(rows), self.constant(1e-12)))

    def norms(self, rows: str) -> str:
        return self.add("ReduceL2", rows, axes=[1])

    def sum(self, values: str, axis: int) -> str:
        return self.add("ReduceSum", values, self.constant([axis], np.int64))

    def reshape(self, values: str, *shape: int) -> str:
        return self.add("Reshape", values, self.constant(shape, np.int64))

    def model(self, outputs: dict[str, int | None]) -> "onnx.ModelProto":
        """The graph with its outputs: numbers [rows, width], or words [rows] where the width is None."""
        from onnx import TensorProto, helper

        made = [
            helper.make_tensor_value_info(name, TensorProto.STRING, ["rows"])
            if width is None
            else helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
            for name, width in outputs.items()
        ]
        graph = helper.make_graph(self.nodes, "fedpdm", self.inputs, made, self.constants)
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        # the format's version of the opsets' time, which runtimes of many years read
        made = helper.make_model(
            graph, opset_imports=opsets, ir_version=8, producer_name="fedpdm", producer_version=__version__
        )
        helper.set_model_props(made, self.about)
        return made
