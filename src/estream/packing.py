"""Filling the matrices of a package's pages from a checkpoint: codes are taken over where both have the same grid, values
are quantised anew elsewhere, and what that costs is measured.
"""

from dataclasses import dataclass

import numpy as np

from estream import _native
from estream.checkpoint.huggingface import widen
from estream.checkpoint.source import CheckpointSource
from estream.errors import CheckpointError
from estream.models.config import TensorRef
from estream.package.layout import MatrixPart


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


@dataclass
class KindTally:
    """What was done with the matrices of one kind: experts, attention or head. Sums are those of ``Packer.error``."""

    kept: int = 0
    requantised: int = 0
    squared_error: float = 0.0
    squared: float = 0.0

    @property
    def relative_rms(self) -> float:
        """Root of the mean squared error over that of the source's values, of what was quantised anew."""
        return float((self.squared_error / self.squared) ** 0.5) if self.squared else 0.0


@dataclass(frozen=True)
class MatrixRows:
    """The rows of a matrix as they were read: codes with a scale for each of the package's groups, or values."""

    source: MatrixSource
    stored_as: str
    codes: np.ndarray | None = None
    scales: np.ndarray | None = None
    values: np.ndarray | None = None
    dtype: str = ""


def read_matrix(checkpoint: CheckpointSource, source: MatrixSource, part: MatrixPart) -> MatrixRows:
    """Read what a matrix is made of, as codes where the package can hold them as they are.

    Raises:
        CheckpointError: a file cannot be read.

    """
    stored_as = "+".join(sorted({checkpoint.stored_as(ref) for ref in source.refs}))
    found = _read_codes(checkpoint, source, part)
    if found is not None:
        return MatrixRows(source, stored_as, *found)
    dtypes = [checkpoint.dtype(ref) for ref in source.refs]
    parts = [source.cut(checkpoint.read_rows(ref, source.first, source.count)) for ref in source.refs]
    if len(set(dtypes)) > 1:
        parts = [widen(np.ascontiguousarray(rows), dtype) for rows, dtype in zip(parts, dtypes, strict=True)]
        dtypes = ["float32"]
    return MatrixRows(source, stored_as, values=_joined(parts), dtype=dtypes[0])


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
        scales.append(source.cut(np.repeat(found.scales, group // part.group, axis=1), part.group))
    return _joined(codes), _joined(scales)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if len(parts) > 1 else np.ascontiguousarray(parts[0])


def code_group(checkpoint: CheckpointSource, refs: tuple[TensorRef, ...], bits: int) -> int | None:
    """The inputs that share a scale in all of these tensors, where their codes have at most so many bits."""
    found = {checkpoint.codes(ref) for ref in refs}
    only = found.pop()
    if found or only is None or only[0] > bits:
        return None
    return only[1]


class MatrixPacker:
    """Packs matrices one by one and keeps count, by kind and stored type."""

    def __init__(self, checkpoint: CheckpointSource, threads: int) -> None:
        self._checkpoint = checkpoint
        self._packer = _native.Packer(threads)
        self.tallies: dict[tuple[str, str], KindTally] = {}

    def pack(self, kind: str, rows: MatrixRows, part: MatrixPart, into: np.ndarray) -> None:
        """Fill ``into``, uint8 [part.bytes].

        Raises:
            CheckpointError: a value is not finite or too large.

        """
        tally = self.tallies.setdefault((kind, rows.stored_as), KindTally())
        matrix = _native.Matrix(part.outputs, part.inputs, part.bits, part.group)
        order = rows.source.order
        if rows.codes is not None and rows.scales is not None:
            self._check(rows, self._packer.pack_codes(matrix, rows.codes, rows.scales, order, into))
            tally.kept += 1
            return
        assert rows.values is not None
        values = rows.values.reshape(-1).view(np.uint8)
        self._check(rows, self._packer.pack(matrix, values, rows.dtype, part.source_inputs, order, into))
        squared_error, squared = self._packer.error(matrix, values, rows.dtype, part.source_inputs, order, into)
        tally.requantised += 1
        tally.squared_error += squared_error
        tally.squared += squared

    def _check(self, rows: MatrixRows, bad: int) -> None:
        if bad >= 0:
            ref = rows.source.refs[0]
            raise CheckpointError(
                f"{self._checkpoint.tensors[ref.name].file.name}: tensor '{ref.name}' ({rows.source.page}) "
                f"holds a value in row {bad} that is not finite or too large to quantise"
            )
