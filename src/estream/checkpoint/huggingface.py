"""A Hugging Face checkpoint folder: ``config.json`` and safetensors in one file or in shards, with or without index."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from estream.checkpoint.fingerprint import take_fingerprint
from estream.checkpoint.source import check_tensors
from estream.errors import CheckpointError
from estream.models.config import TensorRef

INDEX = "model.safetensors.index.json"
_EXTRAS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")
#: Names of safetensors dtypes that weights may have, and of the numpy type that carries their bits.
DTYPES = {"F32": ("float32", np.float32), "F16": ("float16", np.uint16), "BF16": ("bfloat16", np.uint16)}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's bytes lie."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


class HfCheckpoint:
    """Reads tensors by rows with positioned reads, so that memory never holds more than what was asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.config = _read_json(path / "config.json")
        self.files = _weight_files(path)
        self.tensors: dict[str, StoredTensor] = {}
        for file in self.files:
            for name, tensor in _read_header(file).items():
                if name in self.tensors:
                    raise CheckpointError(f"{file.name}: tensor '{name}' is also in {self.tensors[name].file.name}")
                self.tensors[name] = tensor
        _check_index(path, self.tensors)

    def fingerprint(self) -> dict[str, Any]:
        """What identifies this source later."""
        return take_fingerprint("huggingface", self.path, [self.path / "config.json", *self.files])

    def check(self, refs: list[TensorRef], ignored: frozenset[str]) -> None:
        """Refuse a checkpoint that does not hold exactly these tensors, in a shape and type that can be read.

        Raises:
            CheckpointError: names the first tensor that is missing, left over, misshapen or of an unknown type.

        """
        for ref in refs:
            tensor = self.tensors.get(ref.name)
            if tensor is not None and tensor.dtype not in DTYPES:
                raise CheckpointError(
                    f"{tensor.file.name}: tensor '{ref.name}' is {tensor.dtype}; supported are {', '.join(DTYPES)}"
                )
        check_tensors(self.path, self.tensors, refs, ignored)

    def dtype(self, ref: TensorRef) -> str:
        """One of "float32", "float16" and "bfloat16"."""
        return DTYPES[self.tensors[ref.name].dtype][0]

    def stored_as(self, ref: TensorRef) -> str:
        """The type's name in safetensors."""
        return self.tensors[ref.name].dtype

    def codes(self, ref: TensorRef) -> None:
        """These checkpoints hold values, not codes."""

    def read_codes(self, ref: TensorRef, first: int = 0, count: int | None = None) -> None:
        """Never called, since no tensor has codes."""

    def extras(self) -> Iterator[tuple[str, bytes]]:
        """Tokenizer files and chat template, as they are."""
        for name in _EXTRAS:
            if (self.path / name).exists():
                yield name, (self.path / name).read_bytes()

    def read_rows(self, ref: TensorRef, first: int = 0, count: int | None = None) -> np.ndarray:
        """Rows [first, first + count) of a matrix as [count, columns]; bfloat16 and float16 as their bits in uint16.

        Vectors are one row. For a fused tensor, rows are counted within the part that ``ref`` names.
        """
        tensor = self.tensors[ref.name]
        numpy_type = np.dtype(DTYPES[tensor.dtype][1])
        columns = tensor.shape[-1]
        if ref.expert is None:
            rows, start = (1 if len(tensor.shape) == 1 else tensor.shape[0]), 0
        else:
            rows, start = ref.all_rows, ref.expert * tensor.shape[1] + ref.first_row
        count = rows - first if count is None else count
        data = np.empty((count, columns), numpy_type)
        offset = tensor.offset + (start + first) * columns * numpy_type.itemsize
        _read_fully(tensor.file, offset, data)
        return data

    def read_float32(self, ref: TensorRef) -> np.ndarray:
        """A small tensor, widened to float32, in its own shape; refuses values that are not finite."""
        values = widen(self.read_rows(ref), self.dtype(ref)).reshape(ref.shape)
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self.tensors[ref.name].file.name}: tensor '{ref.name}' holds values that are not finite")
        return values


def widen(bits: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values from float32, float16 bits or bfloat16 bits."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32) if dtype == "float16" else bits.view(np.float32)


def _read_fully(file: Path, offset: int, into: np.ndarray) -> None:
    view = into.reshape(-1).view(np.uint8).data
    try:
        with open(file, "rb", buffering=0) as handle:
            done = 0
            while done < len(view):
                n = os.preadv(handle.fileno(), [view[done:]], offset + done)
                if n == 0:
                    raise CheckpointError(f"{file}: ends at byte {offset + done}, inside a tensor; the file is truncated")
                done += n
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing, so this is not a Hugging Face checkpoint folder") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return data


def _weight_files(path: Path) -> list[Path]:
    index = path / INDEX
    if index.exists():
        names = sorted(set(_read_json(index).get("weight_map", {}).values()))
        for name in names:
            if not (path / name).is_file():
                raise CheckpointError(f"{path / name}: this shard is missing, though {INDEX} lists it")
        files = [path / name for name in names]
    else:
        files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{path}: no .safetensors file; other weight formats are not read")
    return files


def _check_index(path: Path, tensors: dict[str, StoredTensor]) -> None:
    if not (path / INDEX).exists():
        return
    for name, file in _read_json(path / INDEX)["weight_map"].items():
        if name not in tensors or tensors[name].file.name != file:
            raise CheckpointError(f"{path / file}: tensor '{name}' is missing, though {INDEX} says that it is here")


def _read_header(file: Path) -> dict[str, StoredTensor]:
    """Safetensors checks header and file length; the offsets that it keeps to itself are read from the same header."""
    try:
        with open(file, "rb") as handle:
            # Opened first: safetensors calls every file that it cannot open absent.
            with safe_open(file, "numpy"):
                pass
            length = int.from_bytes(handle.read(8), "little")
            header = json.loads(handle.read(length))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{file}: not a whole safetensors file ({error}); fetch it again") from error
    return {
        name: StoredTensor(
            file,
            entry["dtype"],
            tuple(entry["shape"]),
            8 + length + entry["data_offsets"][0],
            entry["data_offsets"][1] - entry["data_offsets"][0],
        )
        for name, entry in header.items()
        if name != "__metadata__"
    }
