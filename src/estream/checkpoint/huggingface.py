"""A Hugging Face checkpoint folder: ``config.json`` and one safetensors file, or shards with or without an index."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from estream.checkpoint.about import about_files
from estream.checkpoint.decoders import widen
from estream.checkpoint.int4 import Int4Tensor, TensorCodes
from estream.checkpoint.json_file import read_json
from estream.checkpoint.quantized import decode_tensors
from estream.checkpoint.shards import StoredTensor, read_shards
from estream.checkpoint.source import check_tensors
from estream.errors import CheckpointError
from estream.host.fingerprint import take_fingerprint
from estream.host.regular_file import read_regular
from estream.models.config import TensorRef

__all__ = ["DTYPES", "HfCheckpoint", "widen"]

_EXTRAS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")

#: The types that weights may have after decoding: from the safetensors name to estream's.
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class HfCheckpoint:
    """Reads tensors by rows, so memory holds only the rows of one read.

    Satisfies :class:`estream.checkpoint.source.CheckpointSource`. Compressed tensors appear in ``tensors`` as float32
    matrices. ``compression`` names their method; None for an uncompressed checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.config = read_json(path / "config.json")
        self.files, stored = read_shards(path)
        decoded = decode_tensors(self.config, stored)
        self.tensors = decoded.tensors
        self.compression = decoded.compression

    def in_its_words(self, message: str) -> str:
        return message

    def fingerprint(self) -> dict[str, Any]:
        """Return the source's kind, folder and files, for the manifest."""
        source = take_fingerprint("huggingface", self.path, [self.path / "config.json", *self.files])
        return source if self.compression is None else source | {"compression": self.compression}

    def check(self, refs: list[TensorRef], ignored: frozenset[str]) -> None:
        """Check that the checkpoint holds exactly the tensors of ``refs`` and ``ignored``.

        Raises:
            CheckpointError: names the first tensor that is missing or unknown, or has another shape or an unsupported type.

        """
        for ref in refs:
            tensor = self.tensors.get(ref.name)
            if tensor is not None and tensor.dtype not in DTYPES:
                raise CheckpointError(
                    f"{tensor.file.name}: tensor '{ref.name}' is {tensor.dtype}; supported are {', '.join(DTYPES)}"
                )
        check_tensors(self.path, self.tensors, refs, ignored)

    def dtype(self, ref: TensorRef) -> str:
        """Return the type of ``read_rows``: "float32", "float16" or "bfloat16"."""
        return DTYPES[self.tensors[ref.name].dtype]

    def stored_as(self, ref: TensorRef) -> str:
        """Return the tensor's safetensors type, or its compression method."""
        tensor = self.tensors[ref.name]
        uncompressed = self.compression is None or isinstance(tensor, StoredTensor)
        return tensor.dtype if uncompressed else str(self.compression)

    def extras(self) -> Iterator[tuple[str, bytes]]:
        """Yield names and contents of the tokenizer's files, the chat template, and what says how the model is used."""
        for name in _EXTRAS:
            if (file := self.path / name).exists():
                try:
                    yield name, read_regular(file)
                except OSError as error:
                    raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error
        yield from about_files(self.path)

    def read_rows(self, ref: TensorRef, first: int = 0, count: int | None = None) -> np.ndarray:
        """Return rows [first, first + count) of a matrix as [count, columns]; bfloat16 and float16 as their bits in uint16.

        A vector is one row. Rows are counted within the part that ``ref`` names; the caller applies ``ref.order``. A matrix
        that is transposed, or whose rows alternate with another's, is read whole.
        """
        tensor = self.tensors[ref.name]
        start, rows = self._matrix_rows(ref)
        vector = len(tensor.shape) == (1 if ref.expert is None else 2)
        if vector or _rows_are_scattered(ref):
            matrix = tensor.read_rows(start, rows)
            matrix = matrix.T if ref.transposed else matrix
            if vector:
                return np.ascontiguousarray(_select(matrix.T, ref, 0, None).T)
            return np.ascontiguousarray(_select(matrix, ref, first, count))
        available = ref.all_rows or rows
        return tensor.read_rows(start + ref.first_row + first, available - first if count is None else count)

    def code_format(self, ref: TensorRef) -> tuple[int, int] | None:
        """Return the bits of a tensor's codes and the inputs per scale; None if its values are not codes times fp16 scales."""
        tensor = self.tensors[ref.name]
        return (4, tensor.group) if isinstance(tensor, Int4Tensor) and not _rows_are_scattered(ref) else None

    def read_codes(self, ref: TensorRef, first: int = 0, count: int | None = None) -> TensorCodes | None:
        """Return the codes of rows [first, first + count); None if the tensor has none or one lies outside -8..7."""
        tensor = self.tensors[ref.name]
        if not isinstance(tensor, Int4Tensor) or _rows_are_scattered(ref):
            return None
        start, rows = self._matrix_rows(ref)
        available = ref.all_rows or rows
        return tensor.read_codes(start + ref.first_row + first, available - first if count is None else count)

    def _matrix_rows(self, ref: TensorRef) -> tuple[int, int]:
        """First row and number of rows of the matrix that ``ref`` is part of, in its tensor with all experts."""
        shape = self.tensors[ref.name].shape
        if len(shape) == (1 if ref.expert is None else 2):
            rows = 1
        else:
            rows = math.prod(shape[:-1]) if ref.expert is None else shape[-2]
        return (0 if ref.expert is None else ref.expert * rows), rows

    def read_float32(self, ref: TensorRef) -> np.ndarray:
        """Return a small matrix or vector as float32, plus ``ref.added``. Raises CheckpointError where one is not finite."""
        values = widen(self.read_rows(ref), self.dtype(ref))
        values = values.reshape(-1) if len(ref.shape) == (1 if ref.expert is None else 2) else values
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self.tensors[ref.name].file.name}: tensor '{ref.name}' holds values that are not finite")
        return values + np.float32(ref.added) if ref.added else values


def _rows_are_scattered(ref: TensorRef) -> bool:
    """Whether other values lie between the rows of ``ref``."""
    return ref.transposed or ref.step > 1


def _select(rows: np.ndarray, ref: TensorRef, first: int, count: int | None) -> np.ndarray:
    """Rows [first, first + count) of the part that ``ref`` names."""
    named = rows[ref.first_row :: ref.step][: ref.all_rows or None]
    return named[first : None if count is None else first + count]
