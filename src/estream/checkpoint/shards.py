"""Safetensors files, one or several: the place of each tensor, checked before any is read."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from estream.checkpoint.json_file import read_json
from estream.checkpoint.source_file import read_bytes
from estream.errors import CheckpointError
from estream.host.regular_file import open_regular
from estream.host.sizes import MiB, format_bytes
from estream.schema import PathBelow, SchemaError, from_plain, shown

INDEX = "model.safetensors.index.json"
#: A file of 100,000 tensors has a header of 12 MiB.
_LARGEST_HEADER = 32 * MiB
#: The NumPy type of rows, by safetensors type; float16, bfloat16 and float8 are read as their bits.
NUMPY_TYPES: dict[str, Any] = {
    "F32": np.float32,
    "F16": np.uint16,
    "BF16": np.uint16,
    "F8_E4M3": np.uint8,
    "F8_E8M0": np.uint8,
    "U8": np.uint8,
    "I32": np.int32,
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: ``dtype`` is its safetensors type, ``offset`` its first byte in the file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def rows(self) -> int:
        """The product of all dimensions but the last; 1 for a vector."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    def read_rows(self, first: int = 0, count: int | None = None) -> np.ndarray:
        """Return rows [first, first + count) as [count, columns] of the type in NUMPY_TYPES. Raises CheckpointError."""
        count = self.rows - first if count is None else count
        if self.dtype not in NUMPY_TYPES:
            raise CheckpointError(f"{self.file.name}: tensor '{self.name}' is {self.dtype}, which is not read")
        dtype = np.dtype(NUMPY_TYPES[self.dtype])
        row_bytes = self.columns * dtype.itemsize
        data = read_bytes(self.file, self.offset + first * row_bytes, count * row_bytes)
        if data.ctypes.data % dtype.itemsize:
            data = data.copy()
        rows: np.ndarray = data.view(dtype).reshape(count, self.columns)
        return rows


def read_shards(path: Path) -> tuple[list[Path], dict[str, StoredTensor]]:
    """Return a folder's weight files and every tensor in them. If there is an index, only its files count.

    Raises:
        CheckpointError: a file is absent, truncated or damaged, lies outside of the folder or is no regular file, a tensor is
            stored twice, or is not in the file that the index names.

    """
    index = _read_index(path)
    files = sorted(path.glob("*.safetensors")) if index is None else [path / name for name in sorted(set(index.values()))]
    for file in files:
        if not file.exists():
            raise CheckpointError(f"{file}: this shard is missing, though {INDEX} lists it")
    if not files:
        raise CheckpointError(f"{path}: no .safetensors file; other weight formats are not supported")
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in _read_header(file):
            if tensor.name in tensors:
                raise CheckpointError(f"{file.name}: tensor '{tensor.name}' is also in {tensors[tensor.name].file.name}")
            tensors[tensor.name] = tensor
    for name, shard in (index or {}).items():
        if name not in tensors or tensors[name].file != path / shard:
            raise CheckpointError(f"{path / shard}: tensor {shown(name)} is missing, though {INDEX} says that it is here")
    return files, tensors


def _read_index(path: Path) -> dict[str, str] | None:
    if not (path / INDEX).exists():
        return None
    index = read_json(path / INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise CheckpointError(f"{path / INDEX}: 'weight_map' must say for each tensor in which file it is")
    try:
        return from_plain({"weight_map": index}, dict[str, dict[str, PathBelow]])["weight_map"]
    except SchemaError as error:
        raise CheckpointError(f"{path / INDEX}: {error}") from error


def _read_header(file: Path) -> list[StoredTensor]:
    """Read the header's entries after the safetensors library has checked it. The library does not give the offsets."""
    try:
        # Opening comes first: safetensors reports every file that it cannot open as absent.
        with open_regular(file) as handle:
            length = int.from_bytes(handle.read(8), "little")
            # The library measures a longer header against the file's size and reads it whole.
            if _LARGEST_HEADER < length < os.fstat(handle.fileno()).st_size:
                raise CheckpointError(
                    f"{file}: has a header of {format_bytes(length)}, at most {format_bytes(_LARGEST_HEADER)} are read"
                )
            with safe_open(file, "numpy"):
                pass
            header = json.loads(handle.read(length), object_pairs_hook=_without_duplicates)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error
    except (SafetensorError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not a whole safetensors file ({str(error)[:400]}); fetch it again") from error
    return [
        StoredTensor(name, file, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
        if name != "__metadata__"
    ]


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{shown(name)} is listed twice")
            seen.add(name)
    return values
