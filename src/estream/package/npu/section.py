"""The part of a manifest that concerns the NPU: the shapes of its graphs, and the compiled graphs that lie in the package."""

from msgspec import field

from estream.package.npu.shapes import NpuShapes
from estream.schema import Digest, PlainName, Record


class NpuSection(Record, frozen=True):
    """``contexts`` gives, by SoC and graph, the SHA-256 of the ONNX model that was compiled; ``toolchain`` the versions of what
    compiled it.

    A compiled graph is used only where both are the same.
    """

    shapes: NpuShapes
    toolchain: dict[str, str] = field(default_factory=dict)
    contexts: dict[PlainName, dict[PlainName, Digest]] = field(default_factory=dict)

    @staticmethod
    def file(soc: str, graph: str) -> str:
        """The name, in the package, of a compiled graph."""
        return f"contexts/{soc}/{graph}.onnx"
