"""A GGUF model in the vocabulary of Hugging Face, so that the model families read it as they read their own."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from estream.checkpoint.gguf.architectures import architecture_of
from estream.checkpoint.gguf.files import read_model
from estream.checkpoint.gguf.keys import Keys
from estream.checkpoint.gguf.names import views_of
from estream.checkpoint.gguf.tokenizer import tokenizer_files
from estream.checkpoint.gguf.types import CODE_GROUP
from estream.checkpoint.gguf.views import Piece, View
from estream.checkpoint.huggingface import widen
from estream.checkpoint.source import check_tensors
from estream.errors import CheckpointError
from estream.host.fingerprint import take_fingerprint
from estream.models.config import TensorRef


@dataclass(frozen=True)
class GgufCodes:
    codes: np.ndarray
    scales: np.ndarray


class GgufCheckpoint:
    """Reads tensors by rows with positioned reads, dequantised by chunks, so that memory holds little more than what was
    asked for. Satisfies :class:`estream.checkpoint.source.CheckpointSource`.
    """

    def __init__(self, path: Path) -> None:
        """Read and translate the headers of all files of the model that ``path`` is a file of.

        Raises:
            CheckpointError: a file is damaged or missing, or the architecture or one of its settings is not known.

        """
        self.path = path
        self.notes: list[str] = []
        metadata, stored, self.files = read_model(path)
        keys = Keys(path, metadata)
        architecture = architecture_of(keys)
        self.config = architecture.config(keys, stored, self._vector)
        keys.refuse_unread()
        self._tensors, dropped = views_of(architecture, self.config, stored)
        if dropped:
            self.notes.append(f"left out: {len(dropped)} tensors for predicting several tokens at once ('{dropped[0]}', ...)")
        self._extras, problem = tokenizer_files(metadata, int(self.config["vocab_size"]))
        if problem:
            self.notes.append(f"no tokenizer: {problem}; prompts must be token ids")

    @property
    def tensors(self) -> dict[str, View]:
        return self._tensors

    def fingerprint(self) -> dict[str, Any]:
        return take_fingerprint("gguf", self.files[0].parent, self.files)

    def extras(self) -> Iterator[tuple[str, bytes]]:
        yield from self._extras.items()

    def check(self, refs: list[TensorRef], ignored: frozenset[str]) -> None:
        """Raises CheckpointError: names the first tensor that is missing, left over or misshapen."""
        check_tensors(self.path, self._tensors, refs, ignored)

    def dtype(self, ref: TensorRef) -> str:
        """What is quantised is given in float32, in which ggml computes it. So are the embedding rows of a package then:
        float16 would take half the place, but round the products of codes and scales.
        """
        return self._tensors[ref.name].plain or "float32"

    def stored_as(self, ref: TensorRef) -> str:
        return "+".join(self._tensors[ref.name].type_names)

    def read_rows(self, ref: TensorRef, first: int = 0, count: int | None = None) -> np.ndarray:
        view, start, count = self._rows(ref, first, count)
        dtype = self.dtype(ref)
        data = np.empty((count, view.columns), np.float32 if dtype == "float32" else np.uint16)
        for where, piece, begin, length in view.runs(start, count):
            if view.plain:
                data[where] = piece.blocks(begin, length).view(data.dtype)
            else:
                data[where] = piece.values(begin, length)
        data = view.in_order(data)
        return data if view.undo is None else view.undo(data)

    def read_float32(self, ref: TensorRef) -> np.ndarray:
        values = widen(self.read_rows(ref), self.dtype(ref))
        vector = len(ref.shape) == (1 if ref.expert is None else 2)
        values = values.reshape(-1) if vector else values
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self._tensors[ref.name].file.name}: tensor '{ref.name}' holds values that are not finite")
        return values + np.float32(ref.added) if ref.added else values

    def codes(self, ref: TensorRef) -> tuple[int, int] | None:
        bits = self._tensors[ref.name].code_bits
        return (bits, CODE_GROUP) if bits else None

    def read_codes(self, ref: TensorRef, first: int = 0, count: int | None = None) -> GgufCodes | None:
        view, start, count = self._rows(ref, first, count)
        result = GgufCodes(np.empty((count, view.columns), np.int8), np.empty((count, view.columns // CODE_GROUP), np.uint16))
        for where, piece, begin, length in view.runs(start, count):
            kind = piece.tensor.type
            assert kind.codes is not None
            found = kind.codes(piece.blocks(begin, length).reshape(-1, kind.bytes))
            if not found.fits:
                return None
            result.codes[where] = found.codes.reshape(length, -1)
            result.scales[where] = found.scales.reshape(length, -1)
        return GgufCodes(view.in_order(result.codes), view.in_order(result.scales, CODE_GROUP))

    def _rows(self, ref: TensorRef, first: int, count: int | None) -> tuple[View, int, int]:
        """The view, its first row that is meant, and how many."""
        view, start, rows = self._tensors[ref.name].select(ref)
        return view, start + first, rows - first if count is None else count

    @staticmethod
    def _vector(tensor: Any) -> list[float]:
        """The values of a small tensor that belongs into the config."""
        piece = Piece(tensor, 0, tensor.rows)
        return [float(x) for x in piece.values(0, tensor.rows).reshape(-1)]
