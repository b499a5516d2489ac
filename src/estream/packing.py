"""Filling the matrices of a package's pages from a checkpoint: codes are taken over where both have the same grid, values
are quantised anew elsewhere, and what that costs is measured.
"""

from dataclasses import dataclass

import numpy as np

from estream import _native
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
class _Codes:
    codes: np.ndarray
    scales: np.ndarray


class MatrixPacker:
    """Packs matrices one by one and keeps count, by kind and stored type."""

    def __init__(self, checkpoint: CheckpointSource, threads: int) -> None:
        self._checkpoint = checkpoint
        self._packer = _native.Packer(threads)
        self.tallies: dict[tuple[str, str], KindTally] = {}

    def pack(self, kind: str, source: MatrixSource, part: MatrixPart, into: np.ndarray) -> None:
        """Fill ``into``, uint8 [part.bytes].

        Raises:
            CheckpointError: a value is not finite or too large, or the refs differ in dtype.

        """
        types = sorted({self._checkpoint.stored_as(ref) for ref in source.refs})
        tally = self.tallies.setdefault((kind, "+".join(types)), KindTally())
        matrix = _native.Matrix(part.outputs, part.inputs, part.bits, part.group)
        codes = self._codes(source, part)
        if codes is not None:
            bad = self._packer.pack_codes(matrix, codes.codes, codes.scales, source.order, into)
            tally.kept += 1
        else:
            dtype, rows = self._values(source)
            bad = self._packer.pack(matrix, rows, dtype, part.source_inputs, source.order, into)
            tally.requantised += 1
        if bad >= 0:
            raise CheckpointError(
                f"{self._checkpoint.tensors[source.refs[0].name].file.name}: tensor '{source.refs[0].name}' ({source.page}) "
                f"holds a value in row {bad} that is not finite or too large to quantise"
            )
        if codes is None:
            squared_error, squared = self._packer.error(matrix, rows, dtype, part.source_inputs, source.order, into)
            tally.squared_error += squared_error
            tally.squared += squared

    def _values(self, source: MatrixSource) -> tuple[str, np.ndarray]:
        dtypes = {self._checkpoint.dtype(ref): ref for ref in source.refs}
        if len(dtypes) > 1:
            raise CheckpointError(f"tensors '{source.refs[0].name}' and '{source.refs[-1].name}' must have one dtype")
        parts = [source.cut(self._checkpoint.read_rows(ref, source.first, source.count)) for ref in source.refs]
        rows = np.concatenate(parts) if len(parts) > 1 else np.ascontiguousarray(parts[0])
        return next(iter(dtypes)), rows.reshape(-1).view(np.uint8)

    def _codes(self, source: MatrixSource, part: MatrixPart) -> _Codes | None:
        """The source's codes with a scale for each of the part's groups, None where the part cannot hold them."""
        group = code_group(self._checkpoint, source.refs, part.bits)
        if group is None or group % part.group or part.source_inputs % part.group:
            return None
        parts: list[_Codes] = []
        for ref in source.refs:
            found = self._checkpoint.read_codes(ref, source.first, source.count)
            if found is None:
                return None
            scales = np.repeat(found.scales, group // part.group, axis=1)
            parts.append(_Codes(source.cut(found.codes), source.cut(scales, part.group)))
        return _Codes(
            np.ascontiguousarray(np.concatenate([p.codes for p in parts])),
            np.ascontiguousarray(np.concatenate([p.scales for p in parts])),
        )


def code_group(checkpoint: CheckpointSource, refs: tuple[TensorRef, ...], bits: int) -> int | None:
    """The inputs that share a scale in all of these tensors, where their codes have at most so many bits."""
    found = {checkpoint.codes(ref) for ref in refs}
    only = found.pop()
    if found or only is None or only[0] > bits:
        return None
    return only[1]
