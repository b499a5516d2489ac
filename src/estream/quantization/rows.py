"""The rows of a matrix as a checkpoint gives them: codes where a package can hold those as they are, else values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from estream.checkpoint.decoders import widen
from estream.checkpoint.source import CheckpointSource
from estream.models.config import TensorRef
from estream.package.parts import MatrixPart


@dataclass(frozen=True)
class MatrixSource:
    """Where a matrix of a page comes from.

    Rows [first, first + count) of each ref (all where ``count`` is None), one ref after another, cut to ``columns`` (first
    and behind the last); output i of the matrix is row order[i] of these, or zeros where that is negative. ``page`` is for
    messages.
    """

    refs: tuple[TensorRef, ...]
    order: np.ndarray
    page: str
    first: int = 0
    count: int | None = None
    columns: tuple[int, int] | None = None

    def cut(self, rows: np.ndarray, group: int = 1) -> np.ndarray:
        """The columns of an array that has one for each ``group`` inputs."""
        if self.columns is None:
            return rows
        first, end = self.columns
        # Slices of experts begin and end at whole groups.
        assert first % group == end % group == 0
        return rows[:, first // group : end // group]


@dataclass(frozen=True)
class MatrixRows:
    """The rows of a matrix as they were read: codes with a scale for each of the package's groups, or values of ``dtype``,
    bfloat16 and float16 as their bits, in one or more arrays of as many columns, one after another.
    """

    source: MatrixSource
    stored_as: str
    codes: np.ndarray | None = None
    scales: np.ndarray | None = None
    values: tuple[np.ndarray, ...] = ()
    dtype: str = ""

    @property
    def order(self) -> np.ndarray:
        return self.source.order

    @property
    def count(self) -> int:
        """Rows that were read."""
        return sum(map(len, self.values)) if self.codes is None else len(self.codes)

    def floats(self) -> np.ndarray:
        """float32 [rows, columns]."""
        return widen(_joined(self.values), self.dtype)

    def scaled(self, exponents: np.ndarray) -> "MatrixRows":
        """The values times 2^exponents, int32 that broadcasts; the same bits where nothing is scaled, else float32."""
        if not exponents.any():
            return self
        return replace(self, values=(np.ldexp(self.floats(), exponents),), dtype="float32")


#: Reads rows [first, first + count) of a tensor, as ``CheckpointSource.read_rows``.
ReadRows = Callable[[TensorRef, int, int | None], np.ndarray]


def read_matrix(
    checkpoint: CheckpointSource, source: MatrixSource, part: MatrixPart, read: ReadRows | None = None
) -> MatrixRows:
    """Read what a matrix is made of, as codes where the package can hold them as they are.

    Raises:
        CheckpointError: a file cannot be read.

    """
    stored_as = "+".join(sorted({checkpoint.stored_as(ref) for ref in source.refs}))
    found = _read_codes(checkpoint, source, part)
    if found is not None:
        return MatrixRows(source, stored_as, *found)
    read = read or checkpoint.read_rows
    dtypes = [checkpoint.dtype(ref) for ref in source.refs]
    parts = [np.ascontiguousarray(source.cut(read(ref, source.first, source.count))) for ref in source.refs]
    if len(set(dtypes)) > 1:
        parts = [widen(rows, dtype) for rows, dtype in zip(parts, dtypes, strict=True)]
        dtypes = ["float32"]
    return MatrixRows(source, stored_as, values=tuple(parts), dtype=dtypes[0])


def _read_codes(checkpoint: CheckpointSource, source: MatrixSource, part: MatrixPart) -> tuple[np.ndarray, np.ndarray] | None:
    group = code_group(checkpoint, source.refs, part.bits)
    if group is None or group % part.group or part.source_inputs % part.group:
        return None
    codes: list[np.ndarray] = []
    scales: list[np.ndarray] = []
    for ref in source.refs:
        found = checkpoint.read_codes(ref, source.first, source.count)
        if found is None:
            return None
        codes.append(source.cut(found.codes))
        # A short last group of the source gives fewer scales than it would have inputs for.
        each = np.repeat(found.scales, group // part.group, axis=1)[:, : found.codes.shape[1] // part.group]
        scales.append(source.cut(each, part.group))
    return _joined(codes), _joined(scales)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if len(parts) > 1 else np.ascontiguousarray(parts[0])


def code_group(checkpoint: CheckpointSource, refs: tuple[TensorRef, ...], bits: int) -> int | None:
    """The inputs that share a scale in all of these tensors, where their codes have at most so many bits."""
    found = {checkpoint.codes(ref) for ref in refs}
    only = found.pop()
    if found or only is None or only[0] > bits:
        return None
    return only[1]
