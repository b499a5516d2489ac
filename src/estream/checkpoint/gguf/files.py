"""The files of a GGUF model: one, or parts named ``-00001-of-00003.gguf``."""

import re
from pathlib import Path
from typing import Any

from estream.checkpoint.gguf.reader import GgufFile, GgufTensor, read_gguf
from estream.errors import CheckpointError

_SPLIT = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def find_gguf(path: Path) -> Path | None:
    """The (first) file of the GGUF model that a path means: the file itself, or the only model of a folder without
    safetensors. None where the path means something else.

    Raises:
        CheckpointError: the file does not exist, or the folder holds several models.

    """
    if path.suffix == ".gguf" and not path.is_dir():
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file")
        return path
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    files = sorted(path.glob("*.gguf"))
    models = {(m["model"] if (m := _SPLIT.fullmatch(file.name)) else file.name): file for file in reversed(files)}
    if len(models) > 1:
        raise CheckpointError(
            f"{path}: holds several models ({', '.join(f.name for f in sorted(models.values()))}): name the file"
        )
    return next(iter(models.values()), None)


def read_model(path: Path) -> tuple[dict[str, Any], dict[str, GgufTensor], list[Path]]:
    """Metadata, tensors and files of a model, given any of its files.

    Raises:
        CheckpointError: a part is missing, belongs to another model, or is damaged.

    """
    paths = _parts(path)
    files = [read_gguf(p) for p in paths]
    tensors: dict[str, GgufTensor] = {}
    for index, file in enumerate(files):
        _check_part(file, index, len(files))
        for name, tensor in file.tensors.items():
            if name in tensors:
                raise CheckpointError(f"{file.path}: tensor '{name}' is also in {tensors[name].file.name}")
            tensors[name] = tensor
    metadata = files[0].metadata
    expected = metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise CheckpointError(f"{path}: the parts hold {len(tensors)} tensors, but the first says {expected}")
    return metadata, tensors, paths


def _parts(path: Path) -> list[Path]:
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    paths = [path.with_name(f"{match['model']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    for part in paths:
        if not part.is_file():
            raise CheckpointError(f"{part}: this part of the model is missing")
    if not 1 <= int(match["number"]) <= count:
        raise CheckpointError(f"{path}: part {int(match['number'])} of {count} is not one")
    return paths


def _check_part(file: GgufFile, index: int, count: int) -> None:
    says = file.metadata.get("split.no", 0), file.metadata.get("split.count", 0) or 1
    if says != (index, count):
        raise CheckpointError(
            f"{file.path}: says that it is part {says[0] + 1} of {says[1]}, expected part {index + 1} of {count}; "
            "give every part the name that it was made with"
        )
