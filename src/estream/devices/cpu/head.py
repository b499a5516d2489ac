"""The head on the CPU: wanted rows normalised once, then multiplied with the pages that they need, some rows at a time."""

import numpy as np

from estream import _native
from estream.devices.cpu.activations import HEAD_ROWS, Activations, QuantizedArrays
from estream.devices.cpu.page import BoundPage, CpuLinear
from estream.engine.batch import Batch
from estream.engine.reduction import HeadReduction
from estream.models.config import ModelConfig

#: Rows that are normalised at once.
_NORMED_ROWS = 64


class CpuHead:
    """The head of one batch. Normalised rows take the place of the experts' inputs, which nobody needs any more."""

    def __init__(self, config: ModelConfig, linear: CpuLinear) -> None:
        self._config = config
        self._linear = linear

    def begin(self, batch: Batch, activations: Activations) -> None:
        self._a = activations
        self._reduction = HeadReduction(batch.head, activations.head, self._linear.native)
        # Of the rows in the order of the batch, which each row of the head is.
        self._rows = np.searchsorted(np.sort(batch.wanted), batch.wanted)

    def release(self) -> None:
        """Forget the arrays of the last sweep."""
        del self._a, self._reduction, self._rows

    def normalise(self, residual: np.ndarray, norm: "_native.Norm") -> None:
        """Normalise wanted rows, ``residual`` [wanted, hidden] in the order of the batch."""
        plan, x = self._reduction.plan, self._a.ffn_input
        for first in range(0, plan.shape.rows, _NORMED_ROWS):
            end = min(first + _NORMED_ROWS, plan.shape.rows)
            to = x.rows(first, end) if isinstance(x, QuantizedArrays) else x[first:end]
            rows = residual[self._rows[first:end]]
            # Infinity would become zero where rows are quantised.
            rows[~np.isfinite(rows).all(axis=1)] = np.nan
            self._linear.native.norm(rows, norm, to)
        for first in range(0, len(plan.hidden_rows), _NORMED_ROWS):
            rows = residual[self._rows[plan.hidden_rows[first : first + _NORMED_ROWS]]]
            self._linear.native.norm(rows, norm, rows)
            self._reduction.take_hidden(first, rows)

    def page(self, page: BoundPage) -> None:
        """Multiply the rows that need a page with it, and reduce their logits."""
        spec, x, factor = page.spec, self._a.ffn_input, self._config.logits_factor
        most = min(HEAD_ROWS, len(self._a.head_logits) // spec.count)
        for begin, end in self._reduction.plan.ranges(spec.first, spec.count):
            for first in range(begin, end, most):
                stop = min(first + most, end)
                out = self._a.head_logits[: (stop - first) * spec.count].reshape(-1, spec.count)
                rows = x.rows(first, stop) if isinstance(x, QuantizedArrays) else x[first:stop]
                self._linear.multiply(page, "head", rows, out)
                if factor != 1.0:
                    out *= np.float32(factor)
                self._reduction.take(first, spec.first, out)
