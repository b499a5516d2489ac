"""Linear attention on the CPU, by the gated delta rule."""

import numpy as np

from estream import _native
from estream.devices.cpu.activations import CHUNK, Activations
from estream.devices.cpu.attention import keep_rows
from estream.devices.cpu.page import BoundPage, CpuLinear
from estream.engine.batch import Batch
from estream.models.config import ModelConfig


class DeltaAttention:
    """Tokens pass chunk by chunk, in order; beside the state of the prompt at hand there are those that branches wait for."""

    def __init__(self, config: ModelConfig, linear: CpuLinear) -> None:
        assert config.attention.delta is not None
        self._delta = delta = config.attention.delta
        self._eps = config.norm_eps
        self._linear = linear
        self._native = linear.native
        self._shape = _native.DeltaShape(delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim)

    def begin(self, batch: Batch, activations: Activations) -> None:
        self._batch, self._a = batch, activations

    def release(self) -> None:
        """Forget the arrays of the last sweep."""
        del self._batch, self._a

    def run(self, page: BoundPage, last: bool) -> np.ndarray:
        """Add a layer's attention to the residual; returns the rows that go on: in the ``last`` layer the wanted ones."""
        a, tokens = self._a, self._batch.tokens
        for first in range(0, tokens, CHUNK):
            residual = a.residual[first : min(first + CHUNK, tokens)]
            self._linear.inputs(page, residual, a)
            self._chunk(page, first, len(residual))
            x = (a.delta_output, a.delta_output_quantized)
            self._linear.quantize(a.delta_output, len(residual), self._delta.value_width, a.delta_output_quantized)
            self._linear.project(page, "o", x, residual, add=True)
        if not last:
            return a.residual
        return keep_rows(a.residual, np.sort(self._batch.wanted))

    def _chunk(self, page: BoundPage, first: int, n: int) -> None:
        """From ``n`` normalised rows, from row ``first`` of the batch on, to gated outputs in ``delta_output``."""
        a, before = self._a, self._delta.conv_kernel_size - 1
        rates, gates, read = a.delta_rates[:n], a.delta_gates[:n], a.delta_read[:n]
        x = (a.normed, a.normed_quantized)
        self._linear.project(page, "qkv", x, a.conv_input[before : before + n])
        self._linear.project(page, "z", x, gates)
        self._linear.project(page, "b", x, rates[:, : self._delta.value_heads])
        self._linear.project(page, "a", x, rates[:, self._delta.value_heads :])
        _native.delta_gates(rates, page.floats("log_rates"), page.floats("step_bias"))
        for begin, end in self._batch.state_layout.pieces(first, first + n):
            self._restore(begin, begin - first)
            self._piece(page, first, slice(begin - first, end - first))
            self._save(end, end - first)
        # The next chunk looks back at these.
        a.conv_input[:before] = a.conv_input[n : before + n].copy()
        heads = read.reshape(n * self._delta.value_heads, self._delta.value_dim)
        self._native.norm(heads, _native.Norm(page.floats("gate_norm"), 0, self._delta.value_dim, self._eps), heads)
        _native.gate(self._native, read, gates, True, a.delta_output[:n])

    def _piece(self, page: BoundPage, first: int, rows: slice) -> None:
        """Convolution and the delta rule of some rows of the chunk that begins at row ``first``."""
        a, before = self._a, self._delta.conv_kernel_size - 1
        positions, mixed = self._batch.positions[first + rows.start : first + rows.stop], a.conv_output[rows]
        _native.causal_conv(self._native, a.conv_input[rows.start : rows.stop + before], positions, page.floats("conv"), mixed)
        _native.delta_rule(self._native, self._shape, mixed, a.delta_rates[rows], positions, a.delta_state, a.delta_read[rows])

    def _save(self, row: int, at: int) -> None:
        """Where a branch ends at ``row`` whose state others continue, keep it and what the convolution looks back at."""
        place = self._batch.state_layout.saved.get(row)
        if place is not None:
            a, before = self._a, self._delta.conv_kernel_size - 1
            a.saved_conv[place] = a.conv_input[at : at + before]
            a.saved_states[place] = a.delta_state

    def _restore(self, row: int, at: int) -> None:
        """Where a branch begins at ``row`` that does not follow its parent, take back what the parent left."""
        place = self._batch.state_layout.restored.get(row)
        if place is not None:
            a, before = self._a, self._delta.conv_kernel_size - 1
            a.conv_input[at : at + before] = a.saved_conv[place]
            a.delta_state[...] = a.saved_states[place]
