"""Attention blocks on the CPU: grouped-query and latent."""

from abc import ABC, abstractmethod

import numpy as np

from estream import _native
from estream.devices.cpu_page import BoundPage, CpuLinear
from estream.engine.activations import CHUNK, Activations
from estream.engine.batch import Batch
from estream.models.config import ModelConfig
from estream.models.rope import Rope


def cpu_attention(config: ModelConfig, linear: CpuLinear) -> "CpuAttention":
    """The kind of attention that the model has."""
    return GroupedAttention(config, linear) if config.attention.latent is None else LatentAttention(config, linear)


class CpuAttention(ABC):
    """What both kinds share: keys and values of all rows, chunk by chunk, then attention, output and residual."""

    def __init__(self, config: ModelConfig, linear: CpuLinear) -> None:
        self._config = config
        self._attention = config.attention
        self._linear = linear
        self._native = linear.native
        self._rope = Rope(config.attention.rope)
        a = config.attention
        self._shapes = {
            window: _native.Attention(a.heads, a.kv_heads, a.head_dim, a.value_dim, a.scale, window)
            for window in {a.window_of(layer) for layer in range(config.layers)}
        }

    @abstractmethod
    def keys_and_values(self, page: BoundPage, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rotated keys [rows, kv_heads * head_dim] and values [rows, kv_heads * value_dim] of normalised rows."""

    @abstractmethod
    def queries(self, page: BoundPage, rows: np.ndarray) -> np.ndarray:
        """Rotated queries [rows, heads * head_dim] of normalised rows."""

    def begin(self, batch: Batch, activations: Activations) -> None:
        self._batch, self._a = batch, activations
        # Rows between a prompt's end and the next run of keys are multiplied by zero, so they must be numbers.
        activations.values.fill(0)

    def release(self) -> None:
        """Forget the arrays of the last sweep."""
        del self._batch, self._a

    def run(self, page: BoundPage, last: bool) -> np.ndarray:
        """Add a layer's attention to the residual; returns the rows that go on: in the ``last`` layer the wanted ones."""
        a, tokens = self._a, self._batch.tokens
        for first in range(0, tokens, CHUNK):
            rows = np.arange(first, min(first + CHUNK, tokens), dtype=np.int32)
            self._linear.inputs(page, a.residual[first : first + CHUNK], a)
            self._store(page, rows)
            if not last:
                self._attend(page, rows, a.residual[first : first + CHUNK])
        if not last:
            return a.residual
        wanted, residual = self._batch.wanted, a.last_residual
        np.take(a.residual, wanted, axis=0, out=residual)
        for first in range(0, len(wanted), CHUNK):
            self._linear.inputs(page, residual[first : first + CHUNK], a)
            self._attend(page, wanted[first : first + CHUNK], residual[first : first + CHUNK])
        return residual

    def _store(self, page: BoundPage, rows: np.ndarray) -> None:
        keys, values = self.keys_and_values(page, rows)
        shape = self._shapes[self._attention.window_of(page.spec.layer)]
        a, batch = self._a, self._batch
        self._native.store_key_values(shape, keys, values, batch.kv_rows[rows], a.keys, a.values, batch.kv_capacity)

    def _attend(self, page: BoundPage, rows: np.ndarray, residual: np.ndarray) -> None:
        a, batch, attended = self._a, self._batch, self._a.attended[: len(rows)]
        self._native.attention(
            self._shapes[self._attention.window_of(page.spec.layer)],
            self.queries(page, rows),
            batch.positions[rows],
            batch.bases[rows],
            a.keys,
            a.values,
            batch.kv_capacity,
            attended,
            page.floats("sinks"),
        )
        if self._attention.output_gate:
            self._from_rows(page, "q_gate", a.gates[: len(rows)])
            _native.gate(self._native, attended, a.gates[: len(rows)], False, attended)
        self._linear.quantize(a.attended, len(rows), self._attention.output_width, a.attended_quantized)
        self._linear.project(page, "o", (a.attended, a.attended_quantized), residual, add=True)

    def _from_rows(self, page: BoundPage, name: str, out: np.ndarray) -> None:
        self._linear.project(page, name, (self._a.normed, self._a.normed_quantized), out)

    def _rotate(self, x: np.ndarray, rows: np.ndarray, heads: int) -> None:
        cosine, sine = self._a.angles[0, : len(rows)], self._a.angles[1, : len(rows)]
        self._rope.angles(self._batch.positions[rows], self._batch.prompt_lengths[rows], cosine, sine)
        self._native.rope(x, cosine, sine, heads, x.shape[1] // heads)


class GroupedAttention(CpuAttention):
    """Each key and value head serves a group of query heads."""

    def keys_and_values(self, page: BoundPage, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        keys, values = self._a.new_keys[: len(rows)], self._a.new_values[: len(rows)]
        self._from_rows(page, "k", keys)
        self._from_rows(page, "v", values)
        self._norm_heads(page, "k_norm", keys, self._attention.kv_heads)
        self._clip(keys)
        self._clip(values)
        self._rotate(keys, rows, self._attention.kv_heads)
        return keys, values

    def queries(self, page: BoundPage, rows: np.ndarray) -> np.ndarray:
        queries = self._a.queries[: len(rows)]
        self._from_rows(page, "q", queries)
        self._norm_heads(page, "q_norm", queries, self._attention.heads)
        self._clip(queries)
        self._rotate(queries, rows, self._attention.heads)
        return queries

    def _norm_heads(self, page: BoundPage, name: str, x: np.ndarray, heads: int) -> None:
        kind = self._attention.qk_norm
        if kind != "none":
            view = x.reshape(len(x) * heads, -1) if kind == "head" else x
            self._native.rms_norm(view, page.floats(name), view.shape[1], self._config.norm_eps, view)

    def _clip(self, x: np.ndarray) -> None:
        bound = self._attention.clip
        if bound is not None:
            np.clip(x, -bound, bound, out=x)


class LatentAttention(CpuAttention):
    """Keys and values are made from a few latent values a token, and written out for every head."""

    def __init__(self, config: ModelConfig, linear: CpuLinear) -> None:
        super().__init__(config, linear)
        assert config.attention.latent is not None
        self._latent = config.attention.latent

    def keys_and_values(self, page: BoundPage, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a, n, rotated = self._a, len(rows), self._attention.rope.dims
        latent, normed = a.latent[:n], a.latent_normed[:n]
        self._from_rows(page, "kv_a", latent)
        self._from_rows(page, "k_rope", a.rotated_keys[:n])
        self._rotate(a.rotated_keys[:n], rows, 1)
        self._native.rms_norm(latent, page.floats("kv_a_norm"), self._latent.kv_rank, self._latent.norm_eps, normed)
        self._linear.quantize(a.latent_normed, n, self._latent.kv_rank, a.latent_quantized)
        x = (a.latent_normed, a.latent_quantized)
        self._linear.project(page, "k", x, a.plain_keys[:n])
        self._linear.project(page, "v", x, a.new_values[:n])
        heads = a.new_keys[:n].reshape(n, self._attention.heads, -1)
        heads[..., :rotated] = a.rotated_keys[:n, None]
        heads[..., rotated:] = a.plain_keys[:n].reshape(n, self._attention.heads, -1)
        return a.new_keys[:n], a.new_values[:n]

    def queries(self, page: BoundPage, rows: np.ndarray) -> np.ndarray:
        a, n, rank = self._a, len(rows), self._latent.query_rank
        queries = a.queries[:n]
        if rank:
            latent = a.query_latent[:n]
            self._from_rows(page, "q_a", latent)
            normed = a.query_latent_normed[:n]
            self._native.rms_norm(latent, page.floats("q_a_norm"), rank, self._latent.norm_eps, normed)
            self._linear.quantize(a.query_latent_normed, n, rank, a.query_latent_quantized)
            self._linear.project(page, "q", (a.query_latent_normed, a.query_latent_quantized), queries)
        else:
            self._from_rows(page, "q", queries)
        self._rotate(queries, rows, self._attention.heads)
        return queries
