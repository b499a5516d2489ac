"""Making pages: codes kept as the checkpoint has them, values rounded to searched scales, or codes chosen for a text."""

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
from estream.quantization.weights import PageRows

#: The largest weight whose group still has a scale in fp16, for the smallest divisor of the search.
_LARGEST_WEIGHT = 7.0 * 65504.0


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


class PagePacker:
    """Makes pages and adds up what that costs; ``tallies`` by kind of page and type in the checkpoint."""

    def __init__(self, checkpoint: CheckpointSource, calibration: Calibration | None) -> None:
        self._checkpoint = checkpoint
        self._calibration = calibration
        self._packer = _native.Packer(limits.default_threads())
        self._errors = ErrorTally()
        self.tallies: dict[tuple[str, str], KindTally] = {}

    def page(self, spec: PageSpec, rows: PageRows) -> np.ndarray:
        """A page as it is written, uint8 [spec.bytes].

        Raises:
            CheckpointError: a weight is not finite or too large for an fp16 scale.

        """
        data, matrices = self._begin(spec, rows)
        for part, of_part, into in matrices:
            self._fill(spec, part, of_part, into, rows.get(f"{part.name}_bias"))
        if self._calibration is not None:
            self._calibration.compute(spec, data, self._exact(self._calibration.exact_page(spec), rows, data))
        return data

    def report(self, layers: int) -> QuantizationReport:
        """What all pages so far cost."""
        if self._calibration is None:
            return self._errors.report(layers)
        return self._errors.report(layers, self._calibration.facts, self._calibration.scarce)

    def _begin(self, spec: PageSpec, rows: PageRows) -> tuple[np.ndarray, list[tuple[MatrixPart, MatrixRows, np.ndarray]]]:
        """A page with its float parts, and its matrices with the places that they go to."""
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

    def _exact(self, spec: PageSpec, rows: PageRows, written: np.ndarray) -> np.ndarray:
        """The page through which a calibration text goes to learn what the model was."""
        if spec.kind != "expert":
            return written
        data, matrices = self._begin(spec, rows)
        for part, of_part, into in matrices:
            self._round(part, of_part, into)
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
            moved = replace(rows, values=(self._calibration.head(rows.floats()),), dtype="float32")
            error, squared = self._round(part, moved, into)
        else:
            error, squared = self._round(part, rows, into)
        tally.requantised += 1
        tally.squared_error += error
        tally.squared += squared
        self._errors.add(spec.kind, spec.layer, error, squared)

    def _round(self, part: MatrixPart, rows: MatrixRows, into: np.ndarray) -> tuple[float, float]:
        """Returns the squared error and the squares of the weights."""
        bad, *sums = self._packer.pack(_matrix(part), _bytes(rows), rows.dtype, part.source_inputs, rows.order, into)
        self._check(rows, bad)
        return sums[0], sums[1]

    def _choose(
        self, spec: PageSpec, part: MatrixPart, rows: MatrixRows, into: np.ndarray, bias: MatrixRows | np.ndarray | None
    ) -> tuple[float, float]:
        assert self._calibration is not None
        floats = rows.floats()
        usable = (np.abs(floats) <= _LARGEST_WEIGHT).all(1)
        self._check(rows, -1 if usable.all() else int(np.argmin(usable)))
        of_rows = in_source_order(bias, rows) if isinstance(bias, np.ndarray) else None
        chosen = self._calibration.choose(spec, part, floats, of_rows)
        self._check(rows, self._packer.pack_codes(_matrix(part), chosen.codes, chosen.scales, rows.order, into))
        self._errors.add("outputs", spec.layer, chosen.squared_error, chosen.squared)
        return self._packer.error(_matrix(part), _bytes(rows), rows.dtype, part.source_inputs, rows.order, into)

    def _check(self, rows: MatrixRows, bad: int) -> None:
        if bad >= 0:
            refs = rows.source.refs
            which, row = divmod(bad, rows.count // len(refs))
            name = refs[which].name
            raise CheckpointError(
                f"{self._checkpoint.tensors[name].file.name}: tensor '{name}' ({rows.source.page}) holds a value in row {row} "
                "that is not finite or too large to quantise"
            )


def _matrix(part: MatrixPart) -> "_native.Matrix":
    return _native.Matrix(part.outputs, part.inputs, part.bits, part.group)


def in_source_order(bias: np.ndarray, rows: MatrixRows) -> np.ndarray:
    """The bias of a matrix's outputs, float32 [outputs], brought into the order of its rows, float32 [rows]."""
    found, order = np.zeros(rows.count, np.float32), rows.order
    found[order[order >= 0]] = bias[: len(order)][order >= 0]
    return found


def _bytes(rows: MatrixRows) -> list[np.ndarray]:
    return [values.reshape(-1).view(np.uint8) for values in rows.values]
