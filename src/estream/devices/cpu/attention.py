"""Attention blocks on the CPU: grouped-query and latent."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from estream import _native
from estream.devices.cpu.activations import CHUNK, Activations
from estream.devices.cpu.page import BoundPage, CpuLinear
from estream.engine.batch import Batch
from estream.models.config import ModelConfig
from estream.models.rope import Rope

#: Rows that are moved through memory of their own at once.
_MOVED_ROWS = 64


def cpu_attention(config: ModelConfig, linear: CpuLinear) -> "CpuAttention":
    """The kind of attention that the model has."""
    return GroupedAttention(config, linear) if config.attention.latent is None else LatentAttention(config, linear)


@dataclass(frozen=True)
class Rows:
    """Where some rows of a batch stand, the same in every layer: as queries, and the float32 [rows, rotated / 2] cosines and
    sines of their positions.
    """

    places: "_native.QueryPlaces"
    cosine: np.ndarray
    sine: np.ndarray

    @staticmethod
    def of(batch: Batch, angles: np.ndarray, rows: slice | np.ndarray) -> "Rows":
        keys = batch.key_layout
        places = _native.QueryPlaces(batch.positions[rows], keys.sequences[rows], keys.blocks)
        return Rows(places, angles[0, rows], angles[1, rows])

    def __len__(self) -> int:
        return len(self.cosine)


@dataclass(frozen=True)
class Stored:
    """Which rows of a chunk are stored as keys and values, and in which rows of those: each, some of them several times."""

    rows: np.ndarray
    to: np.ndarray

    @staticmethod
    def of(batch: Batch, chunk: slice) -> "Stored":
        keys = batch.key_layout
        again = slice(*np.searchsorted(keys.copied, [chunk.start, chunk.stop]).tolist())
        rows = np.arange(chunk.stop - chunk.start, dtype=np.int32)
        return Stored(
            np.concatenate([rows, keys.copied[again] - np.int32(chunk.start)]),
            np.concatenate([keys.rows[chunk], keys.copies[again]]),
        )


def keep_rows(residual: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Move rising ``rows`` of the residual to its beginning, where the others are no longer needed; returns them."""
    for first in range(0, len(rows), _MOVED_ROWS):
        some = rows[first : first + _MOVED_ROWS]
        residual[first : first + len(some)] = residual[some]
    return residual[: len(rows)]


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
            for window in {a.sliding_window_of(layer) for layer in range(config.layers)}
        }

    @abstractmethod
    def keys_and_values(self, page: BoundPage, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Rotated keys [rows, kv_heads * head_dim] and values [rows, kv_heads * value_dim] of normalised rows."""

    @abstractmethod
    def queries(self, page: BoundPage, rows: Rows) -> np.ndarray:
        """Rotated queries [rows, heads * head_dim] of normalised rows."""

    def begin(self, batch: Batch, activations: Activations) -> None:
        self._batch, self._a = batch, activations
        # Rows between a prompt's end and the next run of keys are multiplied by zero, so they must be numbers.
        activations.values.fill(0)
        self._rope.angles(batch.positions, batch.prompt_lengths, *activations.angles)
        chunks = (slice(first, min(first + CHUNK, batch.tokens)) for first in range(0, batch.tokens, CHUNK))
        self._chunks = [(each, Rows.of(batch, activations.angles, each), Stored.of(batch, each)) for each in chunks]

    def release(self) -> None:
        """Forget the arrays of the last sweep."""
        del self._batch, self._a, self._chunks

    def run(self, page: BoundPage, last: bool) -> np.ndarray:
        """Add a layer's attention to the residual; returns the rows that go on: in the ``last`` layer the wanted ones."""
        a = self._a
        for chunk, rows, stored in self._chunks:
            self._linear.inputs(page, a.residual[chunk], a)
            self._store(page, rows, stored)
            if not last:
                self._attend(page, rows, a.residual[chunk])
        if not last:
            return a.residual
        wanted = np.sort(self._batch.wanted)
        residual = keep_rows(a.residual, wanted)
        for first in range(0, len(wanted), CHUNK):
            rows = Rows.of(self._batch, a.angles, wanted[first : first + CHUNK])
            self._linear.inputs(page, residual[first : first + CHUNK], a)
            self._attend(page, rows, residual[first : first + CHUNK])
        return residual

    def _store(self, page: BoundPage, rows: Rows, stored: Stored) -> None:
        keys, values = self.keys_and_values(page, rows)
        shape, a, capacity = self._shapes[self._attention.sliding_window_of(page.spec.layer)], self._a, self._batch.kv_capacity
        self._native.store_key_values(shape, keys, values, stored.rows, stored.to, a.keys, a.values, capacity)

    def _attend(self, page: BoundPage, rows: Rows, residual: np.ndarray) -> None:
        a, attended = self._a, self._a.attended[: len(rows)]
        self._native.attention(
            self._shapes[self._attention.sliding_window_of(page.spec.layer)],
            self.queries(page, rows),
            rows.places,
            a.keys,
            a.values,
            self._batch.kv_capacity,
            attended,
            page.floats("sinks"),
        )
        if self._attention.output_gate:
            self._from_rows(page, "q_gate", a.output_gates[: len(rows)])
            _native.gate(self._native, attended, a.output_gates[: len(rows)], False, attended)
        self._linear.quantize(a.attended, len(rows), self._attention.output_width, a.attended_quantized)
        self._linear.project(page, "o", (a.attended, a.attended_quantized), residual, add=True)

    def _from_rows(self, page: BoundPage, name: str, out: np.ndarray) -> None:
        self._linear.project(page, name, (self._a.normed, self._a.normed_quantized), out)


class GroupedAttention(CpuAttention):
    """Each key and value head serves a group of query heads."""

    def keys_and_values(self, page: BoundPage, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        keys, values = self._a.new_keys[: len(rows)], self._a.new_values[: len(rows)]
        self._from_rows(page, "k", keys)
        self._from_rows(page, "v", values)
        self._rotate(page, "k_norm", keys, self._attention.kv_heads, rows)
        bound = self._attention.clip_qkv
        if bound is not None:
            np.clip(values, -bound, bound, out=values)
        return keys, values

    def queries(self, page: BoundPage, rows: Rows) -> np.ndarray:
        queries = self._a.queries[: len(rows)]
        self._from_rows(page, "q", queries)
        self._rotate(page, "q_norm", queries, self._attention.heads, rows)
        return queries

    def _rotate(self, page: BoundPage, name: str, x: np.ndarray, heads: int, rows: Rows) -> None:
        """Normalise queries or keys by the weights ``name``, bound them and rotate them, as far as the model does."""
        norm, kind = None, self._attention.qk_norm
        if kind != "none":
            columns = self._attention.head_dim if kind == "head" else x.shape[1]
            norm = _native.Norm(page.floats(name), 0, columns, self._config.norm_eps)
        self._native.rotate(x, heads, rows.cosine, rows.sine, norm, self._attention.clip_qkv or 0.0)


class LatentAttention(CpuAttention):
    """Keys and values are made from a few latent values a token, and written out for every head."""

    def __init__(self, config: ModelConfig, linear: CpuLinear) -> None:
        super().__init__(config, linear)
        assert config.attention.latent is not None
        self._latent = config.attention.latent

    def keys_and_values(self, page: BoundPage, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        a, n, rotated = self._a, len(rows), self._attention.rope.dims
        latent = a.kv_latent[:n]
        self._from_rows(page, "kv_a", latent)
        self._from_rows(page, "k_rope", a.k_rope[:n])
        self._native.rotate(a.k_rope[:n], 1, rows.cosine, rows.sine)
        x = (a.kv_latent_normed, a.kv_latent_quantized)
        self._linear.normalise(latent, self._norm(page, "kv_a_norm", self._latent.kv_lora_rank), x)
        self._linear.project(page, "k", x, a.k_nope[:n])
        self._linear.project(page, "v", x, a.new_values[:n])
        heads = a.new_keys[:n].reshape(n, self._attention.heads, -1)
        heads[..., :rotated] = a.k_rope[:n, None]
        heads[..., rotated:] = a.k_nope[:n].reshape(n, self._attention.heads, -1)
        return a.new_keys[:n], a.new_values[:n]

    def queries(self, page: BoundPage, rows: Rows) -> np.ndarray:
        a, n, rank = self._a, len(rows), self._latent.q_lora_rank
        queries = a.queries[:n]
        if rank:
            latent = a.q_latent[:n]
            self._from_rows(page, "q_a", latent)
            x = (a.q_latent_normed, a.q_latent_quantized)
            self._linear.normalise(latent, self._norm(page, "q_a_norm", rank), x)
            self._linear.project(page, "q", x, queries)
        else:
            self._from_rows(page, "q", queries)
        self._native.rotate(queries, self._attention.heads, rows.cosine, rows.sine)
        return queries

    def _norm(self, page: BoundPage, name: str, rank: int) -> "_native.Norm":
        return _native.Norm(page.floats(name), 0, rank, self._latent.norm_eps)
