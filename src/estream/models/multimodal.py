"""Language models inside multimodal checkpoints: their settings lie under ``text_config``, their tensors behind a prefix, and
towers for pictures and sound beside them, which estream does not read.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from estream.errors import CheckpointError
from estream.models.config import ModelTensors, TensorRef

_PREFIX = "model.language_model."
_VISION = "model.visual."


def text_settings(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a ``config.json``; all of it where the checkpoint has nothing else."""
    inner = values.get("text_config")
    if inner is None:
        return values
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"config.json: 'text_config' must be an object, found {inner!r}")
    # The head belongs to the model around the language model, and so does the word on whether it is tied.
    return {**inner, "tie_word_embeddings": values.get("tie_word_embeddings", False)}


def text_tensors(available: frozenset[str], build: Callable[[frozenset[str]], ModelTensors]) -> ModelTensors:
    """What ``build`` gives for the language model's names as they are without a prefix, under the names that are there."""
    tensors = build(frozenset(map(_inner, available)))
    if any(name.startswith(_PREFIX) for name in available):
        tensors = _renamed(tensors)
    vision = {name: "of the vision tower" for name in available if name.startswith(_VISION)}
    return replace(tensors, ignored={**tensors.ignored, **vision})


def _inner(name: str) -> str:
    return "model." + name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else name


def _renamed(part: Any) -> Any:
    """A part of the same type, with its tensors behind the prefix."""
    if isinstance(part, TensorRef):
        return replace(part, name=_PREFIX + part.name.removeprefix("model.")) if part.name.startswith("model.") else part
    if isinstance(part, tuple):
        return tuple(map(_renamed, part))
    if isinstance(part, Mapping):
        return {key: _renamed(value) for key, value in part.items()}
    if isinstance(part, Struct):
        return replace(part, **{name: _renamed(getattr(part, name)) for name in part.__struct_fields__})
    return part
