"""Model families, one file each. A family reads a checkpoint's config and names the tensors that hold its weights."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from estream.errors import CheckpointError
from estream.models.config import ModelConfig, ModelTensors
from estream.schema import shown


class Family(Protocol):
    """The interface of a family's module."""

    NAME: str
    ARCHITECTURES: tuple[str, ...]

    def read_config(self, values: Mapping[str, Any]) -> ModelConfig: ...

    def tensors(self, config: ModelConfig, available: frozenset[str]) -> ModelTensors: ...


#: The registry: modules of this package that are families.
_MODULES = (
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe",
    "gpt_oss",
    "granite_moe",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
)

FAMILIES: tuple[Family, ...] = tuple(cast("Family", import_module(f"{__name__}.{name}")) for name in _MODULES)


def family_of(values: Mapping[str, Any]) -> Family:
    """Return the family that reads a checkpoint's ``config.json``.

    Raises:
        CheckpointError: no family knows the architecture.

    """
    names = values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"config.json: 'architectures' must be a list of names, found {shown(names)}")
    for family in FAMILIES:
        if any(name in family.ARCHITECTURES for name in names):
            return family
    known = ", ".join(name for family in FAMILIES for name in family.ARCHITECTURES)
    if not names:
        raise CheckpointError(
            f"config.json: 'architectures' is missing, and 'model_type' {shown(values.get('model_type'))} alone does not "
            f"identify the model; add 'architectures' with one of {known}"
        )
    raise CheckpointError(f"config.json: architecture {shown(', '.join(names))} is not supported; supported: {known}")
