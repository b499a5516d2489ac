"""Language models inside multimodal checkpoints: their settings are under ``text_config`` and their tensor names have a
prefix. estream does not read the vision and audio towers beside them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from estream.errors import CheckpointError
from estream.models.config import ModelTensors, TensorRef
from estream.schema import shown

_PREFIX = "model.language_model."
_VISION = "model.visual."


def text_settings(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's settings: ``text_config``, or all of ``config.json`` where it has none.

    Raises:
        CheckpointError: ``text_config`` is not an object, or is missing for a model that reads pictures.

    """
    inner = values.get("text_config")
    if inner is None:
        if any(name.endswith("ForConditionalGeneration") for name in values.get("architectures") or ()):
            # transformers does not look for the language model's settings outside.
            raise CheckpointError("config.json: 'text_config' is missing")
        return values
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"config.json: 'text_config' must be an object, found {shown(inner)}")
    # The head belongs to the outer model, so the outer config says whether it is tied.
    return {**inner, "tie_word_embeddings": values.get("tie_word_embeddings", False)}


def text_tensors(available: frozenset[str], build: Callable[[frozenset[str]], ModelTensors]) -> ModelTensors:
    """Name the language model's tensors. ``build`` works on names without the prefix; the result has the checkpoint's names."""
    tensors = build(frozenset(map(_without_prefix, available)))
    if any(name.startswith(_PREFIX) for name in available):
        tensors = _with_prefix(tensors)
    vision = {name: "of the vision tower" for name in available if name.startswith(_VISION)}
    return replace(tensors, ignored={**tensors.ignored, **vision})


def _without_prefix(name: str) -> str:
    return "model." + name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else name


def _with_prefix(part: Any) -> Any:
    """Copy a part of ``ModelTensors`` with the prefix on every tensor name."""
    if isinstance(part, TensorRef):
        return replace(part, name=_PREFIX + part.name.removeprefix("model.")) if part.name.startswith("model.") else part
    if isinstance(part, tuple):
        return tuple(map(_with_prefix, part))
    if isinstance(part, Mapping):
        return {key: _with_prefix(value) for key, value in part.items()}
    if isinstance(part, Struct):
        return replace(part, **{name: _with_prefix(getattr(part, name)) for name in part.__struct_fields__})
    return part
