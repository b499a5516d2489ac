"""The graphs of a model as ONNX models, which the vendor's compiler takes."""

import hashlib

from estream.devices.qnn.toolchain import toolchain
from estream.package.npu.graph_specs import graph_specs
from estream.package.npu.shapes import NpuShapes


def graph_models(shapes: NpuShapes) -> dict[str, bytes]:
    """All graphs of a model by name, as the compiler takes them.

    Raises:
        OptionError: the toolchain is not installed.

    """
    toolchain()
    from estream.devices.qnn.graphs import build

    return {spec.name: build(spec, shapes) for spec in graph_specs(shapes)}


def model_digest(model: bytes) -> str:
    """What tells one graph from another."""
    return hashlib.sha256(model).hexdigest()
