"""The graphs themselves, as ONNX models in half precision (docs/npu-graphs.md)."""

from collections.abc import Callable

from estream.devices.qnn.graphs.attention import attend, output, qkv
from estream.devices.qnn.graphs.builder import GraphBuilder
from estream.devices.qnn.graphs.mlp import head, mlp
from estream.devices.qnn.graphs.routing import combine, gather, route
from estream.package.npu.graph_specs import GraphKind, GraphSpec
from estream.package.npu.shapes import NpuShapes

_FILL: dict[GraphKind, Callable[[GraphBuilder, NpuShapes], None]] = {
    "qkv": qkv,
    "attend": attend,
    "output": output,
    "route": route,
    "gather": gather,
    "combine": combine,
    "mlp": mlp,
    "head": head,
}


def build(spec: GraphSpec, shapes: NpuShapes) -> bytes:
    """A graph as a serialised ONNX model."""
    builder = GraphBuilder(spec)
    _FILL[spec.kind](builder, shapes)
    return builder.model()
