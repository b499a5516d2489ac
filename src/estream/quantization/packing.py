"""Making the matrices of a page: plain rounding to searched scales, or codes chosen for the inputs of a calibration text."""

import numpy as np

from estream import _native
from estream.checkpoint.huggingface import HfCheckpoint
from estream.engine import machine
from estream.errors import CheckpointError
from estream.package.layout import MatrixPart, PageSpec
from estream.quantization.calibration import Calibration
from estream.quantization.report import ErrorTally, QuantizationReport
from estream.quantization.weights import PageWeights, Rows

#: The largest weight whose group still has a scale in fp16, for the smallest divisor of the search.
_LARGEST_WEIGHT = 7.0 * 65504.0


class PagePacker:
    """Packs matrices and adds up what that costs."""

    def __init__(self, checkpoint: HfCheckpoint, weights: PageWeights, calibration: Calibration | None) -> None:
        self._checkpoint = checkpoint
        self._weights = weights
        self._calibration = calibration
        self._packer = _native.Packer(machine.default_threads())
        self._tally = ErrorTally()
        self._gate_up = np.zeros((0, 0), np.float32)

    def pack(self, spec: PageSpec, part: MatrixPart, into: np.ndarray) -> None:
        """Fill ``into``, uint8 [part.bytes].

        Raises:
            CheckpointError: a weight is not finite or too large for an fp16 scale.

        """
        rows = self._weights.matrix(spec, part)
        matrix = _native.Matrix(part.outputs, part.inputs, part.bits, part.group)
        source = rows.values.reshape(-1).view(np.uint8)
        if self._calibration is not None and spec.kind == "expert":
            self._calibrated(self._calibration, spec, part, rows, into)
        else:
            self._check(spec, rows, self._packer.pack(matrix, source, rows.dtype, part.source_inputs, rows.order, into))
        error, squared = self._packer.error(matrix, source, rows.dtype, part.source_inputs, rows.order, into)
        self._tally.add(spec.kind, spec.layer, error, squared)

    def report(self, layers: int) -> QuantizationReport:
        """What all pages so far cost."""
        if self._calibration is None:
            return self._tally.report(layers)
        return self._tally.report(layers, self._calibration.facts, self._calibration.scarce)

    def _calibrated(self, calibration: Calibration, spec: PageSpec, part: MatrixPart, rows: Rows, into: np.ndarray) -> None:
        floats = rows.floats()
        usable = (np.abs(floats) <= _LARGEST_WEIGHT).all(1)
        self._check(spec, rows, -1 if usable.all() else int(np.argmin(usable)))
        if part.name == "gate_up":
            self._gate_up = floats
        chosen = calibration.choose(spec, part, floats, self._gate_up)
        matrix = _native.Matrix(part.outputs, part.inputs, part.bits, part.group)
        self._check(spec, rows, self._packer.pack_codes(matrix, chosen.codes, chosen.scales, rows.order, into))
        self._tally.add("outputs", spec.layer, chosen.squared_error, chosen.squared)

    def _check(self, spec: PageSpec, rows: Rows, bad: int) -> None:
        if bad >= 0:
            raise CheckpointError(
                f"{self._checkpoint.tensors[rows.ref.name].file.name}: tensor '{rows.ref.name}' ({spec}) holds a value in row "
                f"{bad} that is not finite or too large to quantise"
            )
