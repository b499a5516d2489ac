"""The part of a manifest that concerns the NPU: the shapes of its graphs, and the compiled graphs that lie in the package."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from estream.package.npu.shapes import AttentionShapes, HeadShapes, MlpShapes, NpuShapes, RoutingShapes

#: Manifest keys, by part, of fields that have other names here.
_KEYS = {
    "attention": {"kv_lora_rank": "kv_rank", "q_lora_rank": "query_rank"},
    "routing": {
        "norm_topk_prob": "normalise",
        "routed_scaling_factor": "scaling",
        "n_group": "groups",
        "topk_group": "top_groups",
    },
    "expert": {"slice_width": "width"},
    "shared": {"slice_width": "width"},
    "head": {},
}


@dataclass(frozen=True)
class NpuSection:
    """``contexts`` gives, by SoC and graph, the SHA-256 of the ONNX model that was compiled; ``toolchain`` the versions of what
    compiled it.

    A compiled graph is used only where both are the same.
    """

    shapes: NpuShapes
    toolchain: Mapping[str, str] = field(default_factory=dict)
    contexts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @staticmethod
    def file(soc: str, graph: str) -> str:
        """The name, in the package, of a compiled graph."""
        return f"contexts/{soc}/{graph}.onnx"

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        for part, keys in _KEYS.items():
            if (fields := data["shapes"][part]) is not None:
                data["shapes"][part] = {keys.get(name, name): value for name, value in fields.items()}
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "NpuSection":
        """Raises KeyError or TypeError where a value is missing, unknown or of another kind."""
        shapes = dict(data["shapes"])
        parts = {part: shapes.pop(part) for part in _KEYS}
        found = NpuShapes(
            attention=AttentionShapes(**_fields("attention", parts["attention"])),
            routing=RoutingShapes(**_fields("routing", parts["routing"])),
            expert=MlpShapes(**_fields("expert", parts["expert"])),
            head=HeadShapes(**_fields("head", parts["head"])),
            shared=None if parts["shared"] is None else MlpShapes(**_fields("shared", parts["shared"])),
            **shapes,
        )
        return NpuSection(found, dict(data["toolchain"]), dict(data["contexts"]))


def _fields(part: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Values by their names here, lists as tuples. Raises TypeError where a name of ours stands for its key."""
    if foreign := set(data) & set(_KEYS[part]):
        raise TypeError(f"unexpected key {min(foreign)!r}")
    names = {key: name for name, key in _KEYS[part].items()}
    return {names.get(key, key): tuple(value) if isinstance(value, list) else value for key, value in data.items()}
