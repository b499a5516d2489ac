"""Views: tensors with the shape and order that Hugging Face gives them, read from the tensors of a GGUF file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from estream.checkpoint.gguf.reader import GgufTensor
from estream.checkpoint.gguf.types import CODE_GROUP
from estream.errors import CheckpointError
from estream.host import system
from estream.models.config import TensorRef

#: Values that are dequantised at once.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Piece:
    """Stored rows [first, first + count) of a tensor.

    ``heads`` is not 0 where llama.cpp reordered the rows of each head (the llama family): it rotates rows 2i and 2i + 1,
    Hugging Face rows i and i + head_dim / 2. ``transposed``: the piece's rows are the stored columns.
    """

    tensor: GgufTensor
    first: int
    count: int
    heads: int = 0
    transposed: bool = False

    @property
    def rows(self) -> int:
        return self.tensor.columns if self.transposed else self.count

    @property
    def columns(self) -> int:
        return self.count if self.transposed else self.tensor.columns

    def blocks(self, first: int, count: int) -> np.ndarray:
        """Return the stored bytes of rows [first, first + count) in Hugging Face's order: uint8 [count, bytes per row]."""
        if not self.heads:
            return _read(self.tensor, self.first + first, count)
        head_dim = self.count // self.heads
        begin, end = first // head_dim * head_dim, -(-(first + count) // head_dim) * head_dim
        stored = _read(self.tensor, self.first + begin, end - begin)
        reordered = stored.reshape(-1, head_dim // 2, 2, stored.shape[1]).swapaxes(1, 2).reshape(stored.shape)
        return reordered[first - begin : first - begin + count]

    def values(self, first: int, count: int) -> np.ndarray:
        """Return dequantised rows [first, first + count): float32 [count, columns]."""
        if self.transposed:
            stored = _dequantise(self.tensor, _read(self.tensor, self.first, self.count))
            return stored[:, first : first + count].T
        return _dequantise(self.tensor, self.blocks(first, count))


@dataclass(frozen=True)
class View:
    """A tensor of Hugging Face: its ``shape`` there, and the pieces that make up its rows.

    Row i is row ``row_order[i]`` of the pieces, column j their column ``column_order[j]``; ``undo`` then maps the values.

    If Hugging Face stores the experts' matrices ``transposed``, or alternates the outputs of ``interleave`` matrices, there is
    one piece for each expert and matrix, with outputs as rows. Such a view is only read through ``select``.
    """

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    interleave: int = 1
    transposed: bool = False
    row_order: tuple[int, ...] | None = None
    column_order: tuple[int, ...] | None = None
    undo: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def file(self) -> Path:
        return self.pieces[0].tensor.file

    @property
    def columns(self) -> int:
        return self.pieces[0].columns

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    @property
    def type_names(self) -> tuple[str, ...]:
        return tuple(sorted({piece.tensor.type.name for piece in self.pieces}))

    @property
    def float_dtype(self) -> str:
        """The type that all values have if they can be copied as they are stored; else empty."""
        dtypes = {"" if piece.transposed or self.undo else piece.tensor.type.float_dtype for piece in self.pieces}
        return dtypes.pop() if len(dtypes) == 1 else ""

    @property
    def code_bits(self) -> int:
        """The bits of the codes; 0 if the values are not codes times scales, or their groups do not stay together."""
        bits = {0 if piece.transposed else piece.tensor.type.code_bits for piece in self.pieces}
        return bits.pop() if len(bits) == 1 and self._keeps_groups() else 0

    def _keeps_groups(self) -> bool:
        """Whether ``column_order`` keeps the columns of each scale together."""
        if self.column_order is None:
            return True
        groups = np.asarray(self.column_order) // CODE_GROUP
        return len(groups) % CODE_GROUP == 0 and bool((groups == np.repeat(groups[::CODE_GROUP], CODE_GROUP)).all())

    def in_order(self, columns: np.ndarray, group: int = 1) -> np.ndarray:
        """Bring [rows, columns / group] from the stored order into Hugging Face's."""
        return columns if self.column_order is None else columns[:, np.asarray(self.column_order[::group]) // group]

    def select(self, ref: TensorRef) -> tuple["View", int, int]:
        """Return the view that ``ref`` names, and the first row and number of rows in it."""
        if (ref.transposed, ref.step) != (self.transposed, self.interleave):
            raise CheckpointError(f"{self.file}: tensor '{ref.name}' does not have all its parts, or in another layout")
        if self.transposed or self.interleave > 1:
            assert ref.expert is not None
            piece = self.pieces[ref.expert * self.interleave + ref.first_row]
            return View(ref.shape, (piece,)), 0, piece.rows
        if ref.expert is None:
            return self, ref.first_row, ref.all_rows or self.rows
        rows = 1 if len(self.shape) == 2 else self.shape[1]
        return self, ref.expert * rows + ref.first_row, ref.all_rows or rows

    def runs(self, first: int, count: int) -> Iterator[tuple[slice, Piece, int, int]]:
        """Cut rows [first, first + count) into runs within one piece, of bounded size.

        Yields the rows of the result that a run fills, the piece, and the first row and number of rows in the piece.
        """
        if self.row_order is None:
            yield from self._stored_runs(first, count)
            return
        rows = np.asarray(self.row_order[first : first + count])
        ends = [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        for start, end in zip([0, *ends], ends, strict=False):
            for target, piece, begin, length in self._stored_runs(int(rows[start]), end - start):
                yield slice(start + target.start, start + target.stop), piece, begin, length

    def _stored_runs(self, first: int, count: int) -> Iterator[tuple[slice, Piece, int, int]]:
        start = 0
        for piece in self.pieces:
            begin, end = max(first - start, 0), min(first + count - start, piece.rows)
            step = piece.rows if piece.transposed else max(1, _CHUNK // piece.columns)
            for at in range(begin, end, step):
                length = min(step, end - at)
                to = start + at - first
                yield slice(to, to + length), piece, at, length
            start += piece.rows


def _read(tensor: GgufTensor, first: int, count: int) -> np.ndarray:
    """Read the bytes of stored rows: uint8 [count, bytes per row]."""
    data = np.empty((count, tensor.row_bytes), np.uint8)
    view, done = data.reshape(-1).data, 0
    offset = tensor.offset + first * tensor.row_bytes
    try:
        with open(tensor.file, "rb", buffering=0) as handle:
            while done < len(view):
                n = system.read_at(handle.fileno(), view[done:], offset + done)
                if n == 0:
                    raise CheckpointError(
                        f"{tensor.file}: ends at byte {offset + done}, inside tensor '{tensor.name}'; "
                        "it was cut while it was read"
                    )
                done += n
    except OSError as error:
        raise CheckpointError(f"{tensor.file}: cannot be read ({error.strerror})") from error
    return data


def _dequantise(tensor: GgufTensor, rows: np.ndarray) -> np.ndarray:
    # Packing refuses values that are not finite, so NumPy's warnings add nothing.
    with np.errstate(all="ignore"):
        return tensor.type.dequantise(rows.reshape(-1, tensor.type.bytes)).reshape(len(rows), -1)
