"""A Hugging Face checkpoint folder: ``config.json`` and safetensors in one file or in shards, with or without index."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from estream.checkpoint.decoders import widen
from estream.checkpoint.int4 import Int4Tensor, TensorCodes
from estream.checkpoint.quantized import present
from estream.checkpoint.shards import StoredTensor, read_json, read_shards
from estream.checkpoint.source import check_tensors
from estream.errors import CheckpointError
from estream.host.fingerprint import take_fingerprint
from estream.models.config import TensorRef

__all__ = ["DTYPES", "HfCheckpoint", "widen"]

_EXTRAS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")

#: Names of safetensors dtypes that weights may have once decoded, and what estream calls them.
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class HfCheckpoint:
    """Reads tensors by rows with positioned reads, so that memory never holds more than what was asked for.

    ``tensors`` presents compressed ones as the float32 matrices that they stand for; ``compression`` says how they are
    stored, None where they are not compressed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.config = read_json(path / "config.json")
        self.files, stored = read_shards(path)
        presented = present(self.config, stored)
        self.tensors = presented.tensors
        self.compression = presented.compression

    def fingerprint(self) -> dict[str, Any]:
        """What identifies this source later."""
        source = take_fingerprint("huggingface", self.path, [self.path / "config.json", *self.files])
        return source if self.compression is None else source | {"compression": self.compression}

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
        return DTYPES[self.tensors[ref.name].dtype]

    def stored_as(self, ref: TensorRef) -> str:
        """The type's name in safetensors, or the method by which the tensor is compressed."""
        tensor = self.tensors[ref.name]
        plain = self.compression is None or isinstance(tensor, StoredTensor)
        return tensor.dtype if plain else str(self.compression)

    def extras(self) -> Iterator[tuple[str, bytes]]:
        """Tokenizer files and chat template, as they are."""
        for name in _EXTRAS:
            if (self.path / name).exists():
                yield name, (self.path / name).read_bytes()

    def read_rows(self, ref: TensorRef, first: int = 0, count: int | None = None) -> np.ndarray:
        """Rows [first, first + count) of a matrix as [count, columns]; bfloat16 and float16 as their bits in uint16.

        Vectors are one row. Rows are counted within the part that ``ref`` names; its order is left to the caller. Memory
        holds what is read: those rows alone, or one whole matrix where it is stored transposed or with others between.
        """
        tensor = self.tensors[ref.name]
        start, rows = self._whole(ref)
        vector = len(tensor.shape) == (1 if ref.expert is None else 2)
        if vector or _scattered(ref):
            whole = tensor.read_rows(start, rows)
            whole = whole.T if ref.transposed else whole
            if vector:
                return np.ascontiguousarray(_part(whole.T, ref, 0, None).T)
            return np.ascontiguousarray(_part(whole, ref, first, count))
        available = ref.all_rows or rows
        return tensor.read_rows(start + ref.first_row + first, available - first if count is None else count)

    def codes(self, ref: TensorRef) -> tuple[int, int] | None:
        """Bits of a tensor's codes and inputs that share a scale; None where its values are not codes times fp16 scales."""
        tensor = self.tensors[ref.name]
        return (4, tensor.group) if isinstance(tensor, Int4Tensor) and not _scattered(ref) else None

    def read_codes(self, ref: TensorRef, first: int = 0, count: int | None = None) -> TensorCodes | None:
        """The codes of rows [first, first + count), for a tensor that has them; None where some lie beyond -8..7."""
        tensor = self.tensors[ref.name]
        if not isinstance(tensor, Int4Tensor) or _scattered(ref):
            return None
        start, rows = self._whole(ref)
        available = ref.all_rows or rows
        return tensor.read_codes(start + ref.first_row + first, available - first if count is None else count)

    def _whole(self, ref: TensorRef) -> tuple[int, int]:
        """First row and rows of the matrix that ``ref`` is part of, leading dimensions of its tensor counted as rows."""
        shape = self.tensors[ref.name].shape
        if len(shape) == (1 if ref.expert is None else 2):
            rows = 1
        else:
            rows = math.prod(shape[:-1]) if ref.expert is None else shape[-2]
        return (0 if ref.expert is None else ref.expert * rows), rows

    def read_float32(self, ref: TensorRef) -> np.ndarray:
        """A small matrix or vector, widened to float32; refuses values that are not finite."""
        values = widen(self.read_rows(ref), self.dtype(ref))
        values = values.reshape(-1) if len(ref.shape) == (1 if ref.expert is None else 2) else values
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self.tensors[ref.name].file.name}: tensor '{ref.name}' holds values that are not finite")
        return values + np.float32(ref.added) if ref.added else values


def _scattered(ref: TensorRef) -> bool:
    """Whether the rows that ``ref`` names do not lie one behind the other."""
    return ref.transposed or ref.step > 1


def _part(rows: np.ndarray, ref: TensorRef, first: int, count: int | None) -> np.ndarray:
    """Rows [first, first + count) of those that ``ref`` names."""
    named = rows[ref.first_row :: ref.step][: ref.all_rows or None]
    return named[first : None if count is None else first + count]
