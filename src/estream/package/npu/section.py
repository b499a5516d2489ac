"""The part of a manifest that concerns the NPU: the sizes of its graphs, and the compiled graphs that lie in the package."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from estream.package.npu.shapes import AttentionShapes, HeadShapes, MlpShapes, NpuShapes, RoutingShapes


@dataclass(frozen=True)
class NpuSection:
    """``contexts`` maps SoCs to graphs to the SHA-256 of the model that was compiled, with the ``toolchain`` of these versions.

    A compiled graph is only used by the same toolchain, for the same model.
    """

    shapes: NpuShapes
    toolchain: Mapping[str, str] = field(default_factory=dict)
    contexts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @staticmethod
    def file(soc: str, graph: str) -> str:
        """The name, in the package, of a compiled graph."""
        return f"contexts/{soc}/{graph}.onnx"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "NpuSection":
        """Raises KeyError or TypeError where a value is missing, unknown or of another kind."""
        shapes = dict(data["shapes"])
        parts: dict[str, Any] = {
            "attention": AttentionShapes(**shapes.pop("attention")),
            "routing": RoutingShapes(**shapes.pop("routing")),
            "expert": _mlp(shapes.pop("expert")),
            "head": HeadShapes(**shapes.pop("head")),
            "shared": None if (shared := shapes.pop("shared")) is None else _mlp(shared),
        }
        return NpuSection(NpuShapes(**shapes, **parts), dict(data["toolchain"]), dict(data["contexts"]))


def _mlp(data: Mapping[str, Any]) -> MlpShapes:
    return MlpShapes(**dict(data) | {"tiles": tuple(data["tiles"])})
