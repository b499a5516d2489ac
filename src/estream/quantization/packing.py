"""Making pages: matrices rounded to searched scales, or with codes chosen for the inputs of a calibration text."""

import numpy as np

from estream import _native
from estream.checkpoint.huggingface import HfCheckpoint
from estream.engine import machine
from estream.errors import CheckpointError
from estream.package.layout import FloatPart, MatrixPart, PageSpec
from estream.quantization.calibration import Calibration
from estream.quantization.report import ErrorTally, QuantizationReport
from estream.quantization.weights import PageWeights, Rows

#: The largest weight whose group still has a scale in fp16, for the smallest divisor of the search.
_LARGEST_WEIGHT = 7.0 * 65504.0


class PagePacker:
    """Makes pages and adds up what that costs."""

    def __init__(self, checkpoint: HfCheckpoint, weights: PageWeights, calibration: Calibration | None) -> None:
        self._checkpoint = checkpoint
        self._weights = weights
        self._calibration = calibration
        self._packer = _native.Packer(machine.default_threads())
        self._tally = ErrorTally()

    def page(self, spec: PageSpec) -> np.ndarray:
        """A page as it is written, uint8 [spec.bytes].

        Raises:
            CheckpointError: a weight is not finite or too large for an fp16 scale.

        """
        data, matrices = self._begin(spec)
        for part, into in matrices:
            rows = self._weights.matrix(spec, part)
            if self._calibration is not None and spec.kind == "expert":
                self._choose(self._calibration, spec, part, rows, into)
            else:
                self._round(spec, part, rows, into)
            matrix, source = _matrix(part), rows.values.reshape(-1).view(np.uint8)
            error, squared = self._packer.error(matrix, source, rows.dtype, part.source_inputs, rows.order, into)
            self._tally.add(spec.kind, spec.layer, error, squared)
        if self._calibration is not None:
            self._calibration.compute(spec, data, self._exact(self._calibration.exact_page(spec), data))
        return data

    def _exact(self, spec: PageSpec, written: np.ndarray) -> np.ndarray:
        """The page through which a calibration text goes to learn what the model was."""
        if spec.kind != "expert":
            return written
        data, matrices = self._begin(spec)
        for part, into in matrices:
            self._round(spec, part, self._weights.matrix(spec, part), into)
        return data

    def _begin(self, spec: PageSpec) -> tuple[np.ndarray, list[tuple[MatrixPart, np.ndarray]]]:
        """A page with its float parts, and its matrices with the places that they go to."""
        data, matrices = np.zeros(spec.bytes, np.uint8), []
        for part in spec.layout.parts:
            into = data[part.offset : part.offset + part.bytes]
            if isinstance(part, FloatPart):
                into.view(np.float32).reshape(part.shape)[...] = self._weights.floats(spec, part)
            else:
                matrices.append((part, into))
        return data, matrices

    def report(self, layers: int) -> QuantizationReport:
        """What all pages so far cost."""
        if self._calibration is None:
            return self._tally.report(layers)
        return self._tally.report(layers, self._calibration.facts, self._calibration.scarce)

    def _round(self, spec: PageSpec, part: MatrixPart, rows: Rows, into: np.ndarray) -> None:
        source = rows.values.reshape(-1).view(np.uint8)
        self._check(spec, rows, self._packer.pack(_matrix(part), source, rows.dtype, part.source_inputs, rows.order, into))

    def _choose(self, calibration: Calibration, spec: PageSpec, part: MatrixPart, rows: Rows, into: np.ndarray) -> None:
        floats = rows.floats()
        usable = (np.abs(floats) <= _LARGEST_WEIGHT).all(1)
        self._check(spec, rows, -1 if usable.all() else int(np.argmin(usable)))
        chosen = calibration.choose(spec, part, floats)
        self._check(spec, rows, self._packer.pack_codes(_matrix(part), chosen.codes, chosen.scales, rows.order, into))
        self._tally.add("outputs", spec.layer, chosen.squared_error, chosen.squared)

    def _check(self, spec: PageSpec, rows: Rows, bad: int) -> None:
        if bad >= 0:
            raise CheckpointError(
                f"{self._checkpoint.tensors[rows.ref.name].file.name}: tensor '{rows.ref.name}' ({spec}) holds a value in row "
                f"{bad} that is not finite or too large to quantise"
            )


def _matrix(part: MatrixPart) -> "_native.Matrix":
    return _native.Matrix(part.outputs, part.inputs, part.bits, part.group)
