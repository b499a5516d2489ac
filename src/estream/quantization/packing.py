"""Packs pages. Codes come from the checkpoint, from a search for each group's scale, or from calibration."""

from dataclasses import dataclass, replace

import numpy as np

from estream import _native
from estream.checkpoint.source import CheckpointSource
from estream.errors import CheckpointError
from estream.host import limits
from estream.host.buffers import BUFFERS
from estream.package.layout import PageSpec
from estream.package.parts import FloatPart, MatrixPart
from estream.package.quantization_report import ErrorTally, QuantizationReport
from estream.quantization.calibration import Calibration
from estream.quantization.rows import MatrixRows
from estream.quantization.use import TextUse
from estream.quantization.weights import PageRows

#: The largest weight whose group still has a scale in fp16, for the smallest divisor of the search.
_LARGEST_WEIGHT = 7.0 * 65504.0


@dataclass
class KindTally:
    """Counts of the matrices of one kind of page that kept their codes or were quantised anew, and the error of the latter.

    ``squared_error`` and ``squared`` are the sums that ``Packer.error`` returns.
    """

    kept: int = 0
    requantised: int = 0
    squared_error: float = 0.0
    squared: float = 0.0

    @property
    def relative_rms(self) -> float:
        """Root mean square of the error over that of the source's values, for the matrices that were quantised anew."""
        return float((self.squared_error / self.squared) ** 0.5) if self.squared else 0.0


class PagePacker:
    """Packs pages in tape order and sums up their errors. ``tallies`` is by kind of page and type in the checkpoint.

    A ``text`` goes through each page that was packed: one that chooses codes, or one whose use of experts is to be known.
    """

    def __init__(self, checkpoint: CheckpointSource, text: Calibration | TextUse | None) -> None:
        self._checkpoint = checkpoint
        self._calibration = text if isinstance(text, Calibration) else None
        self._text_use = text if isinstance(text, TextUse) else None
        self._packer = _native.Packer(limits.default_threads())
        self._errors = ErrorTally()
        self.tallies: dict[tuple[str, str], KindTally] = {}

    def page(self, spec: PageSpec, rows: PageRows) -> np.ndarray:
        """Pack a page: uint8 [spec.bytes].

        Raises:
            CheckpointError: a weight is not finite or too large for an fp16 scale.

        """
        data, matrices = self._begin(spec, rows)
        for part, matrix_rows, into in matrices:
            self._fill(spec, part, matrix_rows, into, rows.get(f"{part.name}_bias"))
        if self._calibration is not None:
            reference = self._reference_page(self._calibration.reference_page(spec), rows, data)
            self._calibration.compute(spec, data, reference)
        elif self._text_use is not None:
            self._text_use.compute(spec, data)
        return data

    def report(self, layers: int) -> QuantizationReport:
        """Return the errors of all pages so far, by layer."""
        if self._calibration is None:
            return self._errors.report(layers)
        return self._errors.report(layers, self._calibration.facts, self._calibration.scarce)

    def _begin(self, spec: PageSpec, rows: PageRows) -> tuple[np.ndarray, list[tuple[MatrixPart, MatrixRows, np.ndarray]]]:
        """A page with its float parts filled in, and for each matrix its rows and the bytes of the page that it fills."""
        data, matrices, end = BUFFERS.take(spec.bytes), [], 0
        for part in spec.layout.parts:
            data[end : part.offset] = 0
            end = part.offset + part.bytes
            into, source = data[part.offset : part.offset + part.bytes], rows[part.name]
            if isinstance(part, FloatPart):
                assert isinstance(source, np.ndarray)
                into.view(np.float32)[...] = source.reshape(-1)
            else:
                assert isinstance(part, MatrixPart)
                assert isinstance(source, MatrixRows)
                matrices.append((part, source, into))
        return data, matrices

    def _reference_page(self, spec: PageSpec, rows: PageRows, written: np.ndarray) -> np.ndarray:
        """The page that calibration's reference model computes with: an expert's in 8 bits, any other as written."""
        if spec.kind != "expert":
            return written
        data, matrices = self._begin(spec, rows)
        for part, matrix_rows, into in matrices:
            self._round(part, matrix_rows, into)
        return data

    def _fill(
        self, spec: PageSpec, part: MatrixPart, rows: MatrixRows, into: np.ndarray, bias: MatrixRows | np.ndarray | None
    ) -> None:
        tally = self.tallies.setdefault((spec.kind, rows.stored_as), KindTally())
        if rows.codes is not None and rows.scales is not None:
            self._check(rows, self._packer.pack_codes(_matrix(part), rows.codes, rows.scales, rows.order, into))
            tally.kept += 1
            return
        if self._calibration is not None and spec.kind == "expert":
            error, squared = self._choose(spec, part, rows, into, bias)
        elif self._calibration is not None and spec.kind == "head":
            corrected = replace(rows, values=(self._calibration.head(rows.floats()),), dtype="float32")
            error, squared = self._round(part, corrected, into)
        else:
            error, squared = self._round(part, rows, into)
        tally.requantised += 1
        tally.squared_error += error
        tally.squared += squared
        self._errors.add(spec.kind, spec.layer, error, squared)

    def _round(self, part: MatrixPart, rows: MatrixRows, into: np.ndarray) -> tuple[float, float]:
        """Quantise with a search for each group's scale. Returns the sums of squared errors and of squared weights."""
        bad, *sums = self._packer.pack(_matrix(part), _bytes(rows), rows.dtype, part.source_inputs, rows.order, into)
        self._check(rows, bad)
        return sums[0], sums[1]

    def _choose(
        self, spec: PageSpec, part: MatrixPart, rows: MatrixRows, into: np.ndarray, bias: MatrixRows | np.ndarray | None
    ) -> tuple[float, float]:
        """Quantise by calibration. Returns the sums of squared errors and of squared weights."""
        assert self._calibration is not None
        floats = rows.floats()
        usable = (np.abs(floats) <= _LARGEST_WEIGHT).all(1)
        self._check(rows, -1 if usable.all() else int(np.argmin(usable)))
        row_bias = in_source_order(bias, rows) if isinstance(bias, np.ndarray) else None
        chosen = self._calibration.choose(spec, part, floats, row_bias)
        self._check(rows, self._packer.pack_codes(_matrix(part), chosen.codes, chosen.scales, rows.order, into))
        self._errors.add("outputs", spec.layer, chosen.squared_error, chosen.squared)
        return self._packer.error(_matrix(part), _bytes(rows), rows.dtype, part.source_inputs, rows.order, into)

    def _check(self, rows: MatrixRows, bad: int) -> None:
        """Raise CheckpointError if ``bad``, a row that cannot be quantised, is not negative."""
        if bad >= 0:
            refs = rows.source.refs
            ref, row = divmod(bad, rows.count // len(refs))
            name = refs[ref].name
            raise CheckpointError(
                f"{self._checkpoint.tensors[name].file.name}: tensor '{name}' ({rows.source.page}) holds a value in row {row} "
                "that is not finite or too large to quantise"
            )


def _matrix(part: MatrixPart) -> "_native.Matrix":
    return _native.Matrix(part.outputs, part.inputs, part.bits, part.group)


def in_source_order(bias: np.ndarray, rows: MatrixRows) -> np.ndarray:
    """Bring the bias of a matrix's outputs, float32 [outputs], into the order of its source rows: float32 [rows]."""
    row_bias, order = np.zeros(rows.count, np.float32), rows.order
    row_bias[order[order >= 0]] = bias[: len(order)][order >= 0]
    return row_bias


def _bytes(rows: MatrixRows) -> list[np.ndarray]:
    return [values.reshape(-1).view(np.uint8) for values in rows.values]
