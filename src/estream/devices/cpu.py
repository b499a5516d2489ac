"""The CPU device: binds pages and activations to the native kernels."""

from functools import cache

import numpy as np

from estream import _native
from estream.engine.activations import CHUNK, Activations, QuantizedArrays
from estream.engine.batch import Batch
from estream.engine.routing import RoutingLists
from estream.models.config import ModelConfig
from estream.package.layout import MatrixPart, PageSpec


@cache
def _matrix(part: MatrixPart) -> "_native.Matrix":
    return _native.Matrix(part.outputs, part.inputs, part.bits, part.group)


class CpuDevice:
    """Computes on ``threads`` threads; with ``float_activations``, without quantising what the weights multiply."""

    def __init__(self, config: ModelConfig, threads: int, float_activations: bool) -> None:
        self._config = config
        self.threads = threads
        self._native = _native.CpuDevice(threads, float_activations)
        self._float = float_activations
        a = config.attention
        self._shape = _native.Attention(a.heads, a.kv_heads, a.head_dim, a.head_dim, float(a.head_dim**-0.5))
        exponents = np.arange(0, a.head_dim, 2, dtype=np.float32) / np.float32(a.head_dim)
        self._frequencies = (1.0 / np.float32(a.rope_theta) ** exponents).astype(np.float32)

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def native(self) -> "_native.CpuDevice":
        return self._native

    @property
    def variant(self) -> str:
        """The kernel variant in use."""
        return str(self._native.variant)

    @property
    def kv_element_bytes(self) -> int:
        """Size of an element of the keys and values in ``Activations``."""
        return self._native.kv_element_bytes

    @property
    def timed_rows(self) -> tuple[int, ...]:
        return (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

    def begin_sweep(self, batch: Batch, activations: Activations) -> None:
        self._batch, self._a = batch, activations
        self._residual = activations.residual
        # Rows between a prompt's end and the next run of keys are multiplied by zero, so they must be numbers.
        activations.values.fill(0)

    def release(self) -> None:
        del self._batch, self._a, self._residual

    # Attention

    def attention(self, spec: PageSpec, address: int) -> None:
        tokens, last = self._batch.tokens, spec.layer == self._config.layers - 1
        for first in range(0, tokens, CHUNK):
            rows = np.arange(first, min(first + CHUNK, tokens), dtype=np.int32)
            self._normalise(spec, address, self._a.residual[first : first + CHUNK])
            self._keys_and_values(spec, address, rows)
            if not last:
                self._attend(spec, address, rows, self._a.residual[first : first + CHUNK])
        if last:
            self._residual = self._a.last_residual
            np.take(self._a.residual, self._batch.wanted, axis=0, out=self._residual)
            for first in range(0, len(self._batch.wanted), CHUNK):
                rows, residual = self._batch.wanted[first : first + CHUNK], self._residual[first : first + CHUNK]
                self._normalise(spec, address, residual)
                self._attend(spec, address, rows, residual)

    def _normalise(self, spec: PageSpec, address: int, residual: np.ndarray) -> None:
        part = spec.layout.floats("input_norm")
        self._norm(residual, address + part.offset, part.shape[0], self._a.normed[: len(residual)])
        self._quantize(self._a.normed, len(residual), self._config.hidden, self._a.normed_quantized)

    def _keys_and_values(self, spec: PageSpec, address: int, rows: np.ndarray) -> None:
        a, n = self._a, len(rows)
        keys, values = a.new_keys[:n], a.new_values[:n]
        self._project(spec, address, "k", a.normed, a.normed_quantized, keys)
        self._project(spec, address, "v", a.normed, a.normed_quantized, values)
        self._norm_heads(spec, address, "k_norm", keys, self._config.attention.kv_heads)
        self._clip(keys)
        self._clip(values)
        self._rotate(keys, rows, self._config.attention.kv_heads)
        self._native.store_key_values(
            self._shape, keys, values, self._batch.kv_rows[rows], a.keys, a.values, self._batch.kv_capacity
        )

    def _attend(self, spec: PageSpec, address: int, rows: np.ndarray, residual: np.ndarray) -> None:
        a, n, attention = self._a, len(rows), self._config.attention
        queries, attended = a.queries[:n], a.attended[:n]
        self._project(spec, address, "q", a.normed, a.normed_quantized, queries)
        self._norm_heads(spec, address, "q_norm", queries, attention.heads)
        self._clip(queries)
        self._rotate(queries, rows, attention.heads)
        self._native.attention(
            self._shape,
            queries,
            self._batch.positions[rows],
            self._batch.bases[rows],
            a.keys,
            a.values,
            self._batch.kv_capacity,
            attended,
        )
        self._quantize(a.attended, n, attention.query_width, a.attended_quantized)
        self._project(spec, address, "o", a.attended, a.attended_quantized, residual, add=True)

    def _project(
        self,
        spec: PageSpec,
        address: int,
        name: str,
        floats: np.ndarray,
        quantized: QuantizedArrays,
        out: np.ndarray,
        *,
        add: bool = False,
    ) -> None:
        part = spec.layout.matrix(name)
        x = floats[: len(out)] if self._float else quantized.rows(0, len(out))
        self._native.matmul(_matrix(part), address + part.offset, x, out, add)

    def _quantize(self, x: np.ndarray, rows: int, columns: int, to: QuantizedArrays) -> None:
        if not self._float:
            self._native.quantize(x[:rows], columns, to.rows(0, rows))

    def _norm_heads(self, spec: PageSpec, address: int, name: str, x: np.ndarray, heads: int) -> None:
        kind = self._config.attention.qk_norm
        if kind == "none":
            return
        part = spec.layout.floats(name)
        view = x.reshape(len(x) * heads, -1) if kind == "head" else x
        self._norm(view, address + part.offset, part.shape[0], view)

    def _norm(self, x: np.ndarray, weight: int, columns: int, y: np.ndarray) -> None:
        self._native.rms_norm(x, weight, columns, self._config.norm_eps, y)

    def _clip(self, x: np.ndarray) -> None:
        bound = self._config.attention.clip
        if bound is not None:
            np.clip(x, -bound, bound, out=x)

    def _rotate(self, x: np.ndarray, rows: np.ndarray, heads: int) -> None:
        angles = self._batch.positions[rows].astype(np.float32)[:, None] * self._frequencies
        cosine, sine = self._a.angles[0, : len(rows)], self._a.angles[1, : len(rows)]
        np.cos(angles, out=cosine)
        np.sin(angles, out=sine)
        self._native.rope(x, cosine, sine, heads, self._config.attention.head_dim)

    # Mixture of experts

    def route(self, spec: PageSpec, address: int) -> RoutingLists:
        a, residual, config = self._a, self._residual, self._config
        ids, weights = a.expert_ids[: len(residual)], a.expert_weights[: len(residual)]
        for first in range(0, len(residual), CHUNK):
            rows = residual[first : first + CHUNK]
            end = first + len(rows)
            normed = a.ffn_input[first:end] if isinstance(a.ffn_input, np.ndarray) else a.normed[: len(rows)]
            logits = self._router_logits(spec, address, rows, normed)
            _native.route(logits, config.moe.experts, config.moe.normalise, ids[first:end], weights[first:end])
            if isinstance(a.ffn_input, QuantizedArrays):
                self._native.quantize(normed, config.hidden, a.ffn_input.rows(first, end))
        return RoutingLists.of(ids, weights, config.moe.experts)

    def _router_logits(self, spec: PageSpec, address: int, rows: np.ndarray, normed: np.ndarray) -> np.ndarray:
        """Normalise rows into ``normed`` and multiply them by the router of this page."""
        norm, router = spec.layout.floats("post_norm"), spec.layout.floats("router")
        logits = self._a.router_logits[: len(rows)]
        self._norm(rows, address + norm.offset, norm.shape[0], normed)
        self._native.router(normed, address + router.offset, self._config.hidden, logits)
        return logits

    def predict(self, spec: PageSpec, address: int) -> frozenset[int]:
        # Only few tokens are predicted for, so one chunk holds them. Of each token's experts only the likeliest quarter is
        # named: nine in ten of those come true or more, and what is named wrongly costs more than it hides.
        rows = self._residual[:CHUNK]
        logits = self._router_logits(spec, address, rows, self._a.normed[: len(rows)])
        ids = np.empty((len(rows), max(1, self._config.moe.top_k // 4)), np.int32)
        weights = np.empty(ids.shape, np.float32)
        _native.route(logits, self._config.moe.experts, False, ids, weights)
        return frozenset(np.unique(ids).tolist())

    def begin_experts(self, routing: RoutingLists) -> None:
        self._routing = routing

    def expert(self, spec: PageSpec, address: int) -> None:
        a = self._a
        tokens, weights = self._routing.of_expert(spec.expert)
        gate_up, down = spec.layout.matrix("gate_up"), spec.layout.matrix("down")
        expert = _native.Expert(_matrix(gate_up), _matrix(down), down.offset)
        x = a.ffn_input if isinstance(a.ffn_input, np.ndarray) else a.ffn_input.rows(0, len(self._residual))
        scratch = a.expert_quantized.rows(0, len(a.expert_hidden))
        if spec.slice < 0:
            self._native.expert(expert, address, x, tokens, tokens, weights, a.expert_hidden, scratch, self._residual)
            return
        partial, places = a.expert_partial[: len(tokens)], np.arange(len(tokens), dtype=np.int32)
        if spec.first == 0:
            partial.fill(0.0)
        self._native.expert(expert, address, x, tokens, places, np.ones_like(weights), a.expert_hidden, scratch, partial)
        if spec.first + spec.count == self._config.moe.width:
            self._native.scatter_add(partial, tokens, weights, self._residual)

    def end_experts(self) -> None:
        del self._routing

    # Head

    def final_norm(self, weight: np.ndarray) -> None:
        self._final_norm = weight

    def head(self, spec: PageSpec, address: int) -> None:
        a = self._a
        for first in range(0, len(self._residual), CHUNK):
            rows = self._residual[first : first + CHUNK]
            self._norm(rows, self._final_norm.ctypes.data, self._config.hidden, a.normed[: len(rows)])
            self._quantize(a.normed, len(rows), self._config.hidden, a.normed_quantized)
            out = a.logits[first : first + len(rows), spec.first : spec.first + spec.count]
            self._project(spec, address, "head", a.normed, a.normed_quantized, out)
