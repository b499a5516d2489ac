"""Reads the rows of a matrix from a checkpoint: codes if the package can hold them unchanged, else values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from estream.checkpoint.decoders import widen
from estream.checkpoint.source import CheckpointSource
from estream.models.config import TensorRef
from estream.package.parts import MatrixPart


@dataclass(frozen=True)
class MatrixSource:
    """The tensors that a matrix of a page is made of.

    Source rows are rows [first, first + count) of each ref (all if ``count`` is None), one ref after another, cut to columns
    [columns[0], columns[1]). Output i of the matrix is source row order[i], or zeros if that is negative. ``page`` is for
    messages.
    """

    refs: tuple[TensorRef, ...]
    order: np.ndarray
    page: str
    first: int = 0
    count: int | None = None
    columns: tuple[int, int] | None = None

    def cut(self, rows: np.ndarray, group: int = 1) -> np.ndarray:
        """Cut an array with one column per ``group`` inputs to the columns of this source."""
        if self.columns is None:
            return rows
        first, end = self.columns
        # Slices of experts begin and end at the boundaries of groups.
        assert first % group == end % group == 0
        return rows[:, first // group : end // group]


@dataclass(frozen=True)
class MatrixRows:
    """The source rows of a matrix: either codes int8 [rows, columns] and scales, fp16 bits [rows, columns / package's group],
    or values of ``dtype`` in one or more arrays [any, columns], bfloat16 and float16 as their bits.
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
        """The number of source rows."""
        return sum(map(len, self.values)) if self.codes is None else len(self.codes)

    def floats(self) -> np.ndarray:
        """Return the values as float32 [rows, columns]."""
        return widen(_concatenate(self.values), self.dtype)

    def scaled(self, exponents: np.ndarray) -> "MatrixRows":
        """Multiply the values by 2^exponents, int32 that broadcasts. Values become float32 unless all exponents are 0."""
        if not exponents.any():
            return self
        return replace(self, values=(np.ldexp(self.floats(), exponents),), dtype="float32")


#: Reads rows [first, first + count) of a tensor, like ``CheckpointSource.read_rows``.
ReadRows = Callable[[TensorRef, int, int | None], np.ndarray]


def read_matrix(
    checkpoint: CheckpointSource, source: MatrixSource, part: MatrixPart, read: ReadRows | None = None
) -> MatrixRows:
    """Read the source rows of a matrix: codes if the package can hold them unchanged, else values through ``read``.

    Raises:
        CheckpointError: a file cannot be read.

    """
    stored_as = "+".join(sorted({checkpoint.stored_as(ref) for ref in source.refs}))
    codes_and_scales = _read_codes(checkpoint, source, part)
    if codes_and_scales is not None:
        return MatrixRows(source, stored_as, *codes_and_scales)
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
        # Cut, since the source's last group may be shorter than the others.
        package_scales = np.repeat(found.scales, group // part.group, axis=1)[:, : found.codes.shape[1] // part.group]
        scales.append(source.cut(package_scales, part.group))
    return _concatenate(codes), _concatenate(scales)


def _concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if len(parts) > 1 else np.ascontiguousarray(parts[0])


def code_group(checkpoint: CheckpointSource, refs: tuple[TensorRef, ...], bits: int) -> int | None:
    """Return the inputs per scale if all tensors have codes of one format with at most ``bits`` bits; else None."""
    formats = {checkpoint.code_format(ref) for ref in refs}
    code_format = formats.pop()
    if formats or code_format is None or code_format[0] > bits:
        return None
    return code_format[1]
