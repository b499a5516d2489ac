"""Checkpoints by their id on the Hugging Face hub, such as "allenai/OLMoE-1B-7B-0924"."""

import re
from pathlib import Path

from estream.errors import CheckpointError

_FILES = [
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "*.jinja",
    "generation_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "*_Pooling/config.json",
]


def resolve(source: str) -> Path:
    """Return a local folder unchanged, or fetch a hub id into the hub's cache and return that folder.

    Raises:
        CheckpointError: ``source`` is neither a folder nor an id, or the hub cannot be reached or does not know the id.

    """
    path = Path(source)
    if path.exists():
        if path.is_dir():
            return path
        raise CheckpointError(f"{path}: a checkpoint is a folder with config.json and .safetensors files, or a .gguf file")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise CheckpointError(f"{source}: no such folder, and not a hub id of the form owner/name")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # from its HTTP client
    except RuntimeError as error:  # it looks for a home as it is imported
        raise CheckpointError(
            f"{source}: no such folder here, and the hub cannot be asked: {error}; set HF_HOME to a folder"
        ) from error

    try:
        return Path(snapshot_download(source, allow_patterns=_FILES))
    except (HTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{source}: no such folder here, and the hub did not give it ({reason})") from error
