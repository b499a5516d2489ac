"""The graphs of a model as ONNX models, which the vendor's compiler takes."""

import hashlib

from estream.devices.qnn.toolchain import toolchain
from estream.package.npu.graph_specs import GraphSpec
from estream.package.npu.shapes import NpuShapes


def graph_model(spec: GraphSpec, shapes: NpuShapes) -> bytes:
    """A graph as a serialised ONNX model, equal bytes for equal arguments.

    Raises:
        OptionError: the toolchain is not installed.

    """
    toolchain()
    from estream.devices.qnn.graphs import build  # imports onnx

    return build(spec, shapes)


def model_digest(model: bytes) -> str:
    """The SHA-256 of a model, in hexadecimal digits. Packages know compiled graphs by it."""
    return hashlib.sha256(model).hexdigest()
