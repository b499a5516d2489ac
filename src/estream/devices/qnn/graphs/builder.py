"""Writes ONNX nodes with unique names, for the inputs and outputs of a GraphSpec."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from estream.package.npu.graph_specs import GraphSpec, TensorSpec

#: The first opset with RMSNormalization, and the file version that goes with it.
_OPSET, _IR_VERSION = 23, 11

_TYPES = {"float16": TensorProto.FLOAT16, "uint8": TensorProto.UINT8, "int32": TensorProto.INT32, "int64": TensorProto.INT64}


class GraphBuilder:
    """Values are named by strings, as in ONNX."""

    def __init__(self, spec: GraphSpec) -> None:
        self.spec = spec
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], onnx.TensorProto] = {}

    def op(self, kind: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        """Add a node with one output, and return the output's name. ``to`` names an output of the graph."""
        return self.ops(kind, *inputs, to=(to,), **attributes)[0]

    def ops(self, kind: str, *inputs: str, to: Sequence[str], **attributes: Any) -> list[str]:
        """Add a node with an output for each name in ``to``, and return the names. An empty name is replaced by a new one."""
        name = f"{kind}_{len(self._nodes)}"
        outputs = [given or f"{name}_{index}" for index, given in enumerate(to)]
        self._nodes.append(helper.make_node(kind, list(inputs), outputs, name=name, **attributes))
        return outputs

    def half(self, values: object) -> str:
        return self._constant(np.asarray(values, np.float16))

    def integers(self, values: object) -> str:
        return self._constant(np.asarray(values, np.int32))

    def shape(self, *sizes: int) -> str:
        """A constant of int64, which ONNX takes for shapes, axes and the sizes of a split."""
        return self._constant(np.asarray(sizes, np.int64))

    def octets(self, values: object) -> str:
        return self._constant(np.asarray(values, np.uint8))

    def reshape(self, x: str, *sizes: int, to: str = "") -> str:
        return self.op("Reshape", x, self.shape(*sizes), to=to)

    def split(self, x: str, *sizes: int) -> list[str]:
        """Along the last axis."""
        return self.ops("Split", x, self.shape(*sizes), to=[""] * len(sizes), axis=-1)

    def cast(self, x: str, dtype: str, to: str = "") -> str:
        name = f"Cast_{len(self._nodes)}"
        self._nodes.append(helper.make_node("Cast", [x], [to or f"{name}_0"], name=name, to=_TYPES[dtype]))
        return to or f"{name}_0"

    def model(self) -> bytes:
        """The serialised model."""
        inputs, outputs = ([_value(tensor) for tensor in side] for side in (self.spec.inputs, self.spec.outputs))
        graph = helper.make_graph(self._nodes, self.spec.name, inputs, outputs, list(self._constants.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        return bytes(model.SerializeToString())

    def _constant(self, array: np.ndarray) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = numpy_helper.from_array(array, f"constant_{len(self._constants)}")
        return self._constants[key].name


def _value(tensor: TensorSpec) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, _TYPES[tensor.dtype], list(tensor.shape))
