"""Opening a checkpoint of any supported format."""

from pathlib import Path

from estream.checkpoint.gguf.checkpoint import GgufCheckpoint
from estream.checkpoint.gguf.files import find_gguf
from estream.checkpoint.hub import resolve
from estream.checkpoint.huggingface import HfCheckpoint
from estream.checkpoint.source import CheckpointSource


def open_checkpoint(source: str) -> CheckpointSource:
    """Open a GGUF file or folder, a Hugging Face folder, or a hub id.

    Raises:
        CheckpointError: there is no such checkpoint, or it is incomplete, damaged or not supported.

    """
    file = find_gguf(Path(source))
    return GgufCheckpoint(file) if file else HfCheckpoint(resolve(source))
