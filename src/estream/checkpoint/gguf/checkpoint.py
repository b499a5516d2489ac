"""A GGUF model in the vocabulary of Hugging Face, so model families read it like a Hugging Face checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from estream.checkpoint.gguf.architectures import architecture_of
from estream.checkpoint.gguf.files import read_model
from estream.checkpoint.gguf.keys import Keys
from estream.checkpoint.gguf.names import views_by_name
from estream.checkpoint.gguf.tokenizer import tokenizer_files
from estream.checkpoint.gguf.types import CODE_GROUP
from estream.checkpoint.gguf.views import Piece, View
from estream.checkpoint.gguf.words import in_gguf_words
from estream.checkpoint.huggingface import widen
from estream.checkpoint.source import check_tensors
from estream.errors import CheckpointError
from estream.host.fingerprint import take_fingerprint
from estream.models.config import TensorRef

#: Values of a tensor that belongs into the config.
_LARGEST_VECTOR = 4096


@dataclass(frozen=True)
class GgufCodes:
    """Codes int8 [rows, columns] and scales, fp16 bits in uint16 [rows, columns / CODE_GROUP]."""

    codes: np.ndarray
    scales: np.ndarray


class GgufCheckpoint:
    """Reads tensors by rows and dequantises them in chunks, so memory holds little more than the rows of one read.

    Satisfies :class:`estream.checkpoint.source.CheckpointSource`.
    """

    def __init__(self, path: Path) -> None:
        """Read and translate the headers of all files of a model; ``path`` is any of the files.

        Raises:
            CheckpointError: a file is damaged or missing, or the architecture or one of its settings is not supported.

        """
        self.path = path
        self.notes: list[str] = []
        metadata, stored, self.files = read_model(path)
        self._keys = keys = Keys(path, metadata)
        architecture = architecture_of(keys)
        self.config = architecture.config(keys, stored, self._vector)
        keys.refuse_unread()
        self._tensors, dropped = views_by_name(architecture, self.config, stored)
        if dropped:
            self.notes.append(f"left out: {len(dropped)} tensors for multi-token prediction ('{dropped[0]}', ...)")
        self._extras, problem = tokenizer_files(metadata, int(self.config["vocab_size"]))
        if problem:
            self.notes.append(f"no tokenizer: {problem}; prompts must be token ids")

    @property
    def tensors(self) -> dict[str, View]:
        return self._tensors

    def in_its_words(self, message: str) -> str:
        return in_gguf_words(message, self._keys)

    def fingerprint(self) -> dict[str, Any]:
        return take_fingerprint("gguf", self.files[0].parent, self.files)

    def extras(self) -> Iterator[tuple[str, bytes]]:
        yield from self._extras.items()

    def check(self, refs: list[TensorRef], ignored: frozenset[str]) -> None:
        """Raise CheckpointError, naming the first tensor that is missing or unknown, or has another shape."""
        check_tensors(self.path, self._tensors, refs, ignored)

    def dtype(self, ref: TensorRef) -> str:
        """Quantised tensors read as float32, like ggml's own dequantisation; float16 would round codes times scales."""
        return self._tensors[ref.name].float_dtype or "float32"

    def stored_as(self, ref: TensorRef) -> str:
        return "+".join(self._tensors[ref.name].type_names)

    def read_rows(self, ref: TensorRef, first: int = 0, count: int | None = None) -> np.ndarray:
        view, start, count = self._rows(ref, first, count)
        dtype = self.dtype(ref)
        data = np.empty((count, view.columns), np.float32 if dtype == "float32" else np.uint16)
        for target, piece, begin, length in view.runs(start, count):
            if view.float_dtype:
                data[target] = piece.blocks(begin, length).view(data.dtype)
            else:
                data[target] = piece.values(begin, length)
        data = view.in_order(data)
        return data if view.undo is None else view.undo(data)

    def read_float32(self, ref: TensorRef) -> np.ndarray:
        values = widen(self.read_rows(ref), self.dtype(ref))
        vector = len(ref.shape) == (1 if ref.expert is None else 2)
        values = values.reshape(-1) if vector else values
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self._tensors[ref.name].file.name}: tensor '{ref.name}' holds values that are not finite")
        return values + np.float32(ref.added) if ref.added else values

    def code_format(self, ref: TensorRef) -> tuple[int, int] | None:
        bits = self._tensors[ref.name].code_bits
        return (bits, CODE_GROUP) if bits else None

    def read_codes(self, ref: TensorRef, first: int = 0, count: int | None = None) -> GgufCodes | None:
        view, start, count = self._rows(ref, first, count)
        result = GgufCodes(np.empty((count, view.columns), np.int8), np.empty((count, view.columns // CODE_GROUP), np.uint16))
        for target, piece, begin, length in view.runs(start, count):
            tensor_type = piece.tensor.type
            assert tensor_type.codes is not None
            blocks = tensor_type.codes(piece.blocks(begin, length).reshape(-1, tensor_type.bytes))
            if not blocks.fits:
                return None
            result.codes[target] = blocks.codes.reshape(length, -1)
            result.scales[target] = blocks.scales.reshape(length, -1)
        return GgufCodes(view.in_order(result.codes), view.in_order(result.scales, CODE_GROUP))

    def _rows(self, ref: TensorRef, first: int, count: int | None) -> tuple[View, int, int]:
        """The view that ``ref`` names, and the first row and number of rows in it."""
        view, start, rows = self._tensors[ref.name].select(ref)
        return view, start + first, rows - first if count is None else count

    @staticmethod
    def _vector(tensor: Any) -> list[float]:
        """All values of a small tensor that belongs into the config."""
        if (count := tensor.rows * tensor.columns) > _LARGEST_VECTOR:
            raise CheckpointError(
                f"{tensor.file}: tensor '{tensor.name}' has {count} values, expected {_LARGEST_VECTOR} at most"
            )
        piece = Piece(tensor, 0, tensor.rows)
        return [float(x) for x in piece.values(0, tensor.rows).reshape(-1)]
