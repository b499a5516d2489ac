"""The files of a GGUF model: one, or parts such as ``NAME-00001-of-00003.gguf``."""

import re
from pathlib import Path
from typing import Any

from estream.checkpoint.gguf.reader import GgufFile, GgufTensor, read_gguf
from estream.errors import CheckpointError
from estream.schema import shown

_SPLIT = re.compile(r"(?P<model>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def find_gguf(path: Path) -> Path | None:
    """Return a file of the GGUF model at ``path``: a ``.gguf`` file, or the only model in a folder without safetensors.

    None if ``path`` is not a GGUF model.

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
    """Return the metadata, the tensors by name and the files of a model; ``path`` is any of its files.

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
    expected = _count(files[0], "split.tensors.count", len(tensors))
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
        raise CheckpointError(
            f"{path}: the name says part {int(match['number'])} of {count}; expected a part from 1 to {count}"
        )
    return paths


def _count(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise CheckpointError(f"{file.path}: '{key}' must be a whole number, found {shown(value)}")
    return value


def _check_part(file: GgufFile, index: int, count: int) -> None:
    part = _count(file, "split.no", 0), _count(file, "split.count", 0) or 1
    if part != (index, count):
        raise CheckpointError(
            f"{file.path}: says that it is part {part[0] + 1} of {part[1]}, expected part {index + 1} of {count}; "
            "give every part its original name"
        )
