"""Activations of one batch: every array's size is known before any of them exists, and all of them lie in the arena."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from estream import _native
from estream.engine.batch import Batch
from estream.models.config import ModelConfig
from estream.package.layout import LANES, Quantization, group_for
from estream.units import round_up

#: Tokens that attention and the router work on at once.
CHUNK = 512
#: Tokens of one expert whose intermediate activations exist at once.
EXPERT_ROWS = 256

_ALIGNMENT = 4096


@dataclass(frozen=True)
class Array:
    """Shape and type of one array to come."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


def floats(*shape: int) -> Array:
    return Array(shape, np.dtype(np.float32))


def integers(*shape: int) -> Array:
    return Array(shape, np.dtype(np.int32))


def raw(size: int) -> Array:
    return Array((size,), np.dtype(np.uint8))


@dataclass(frozen=True)
class QuantizedArrays:
    """Quantised rows: codes int8 [rows, columns], scales float32 and code sums int32 [rows, groups]."""

    codes: np.ndarray
    scales: np.ndarray
    sums: np.ndarray

    def rows(self, first: int, end: int) -> "_native.Quantized":
        return _native.Quantized(self.codes[first:end], self.scales[first:end], self.sums[first:end])


@dataclass(frozen=True)
class QuantizedPlan:
    """The shapes of a :class:`QuantizedArrays` to come."""

    rows: int
    columns: int
    group: int

    def arrays(self) -> tuple[Array, Array, Array]:
        groups = self.columns // self.group
        return Array((self.rows, self.columns), np.dtype(np.int8)), floats(self.rows, groups), integers(self.rows, groups)


@dataclass(frozen=True)
class ActivationPlan:
    """The arrays that a batch of ``tokens`` needs. T tokens, C = min(T, CHUNK), W wanted rows; widths padded to groups."""

    residual: Array  # [T, hidden]
    last_residual: Array  # [W, hidden]
    keys: Array  # bytes: [kv_heads * capacity * head_dim] elements, in the device's own order
    values: Array  # bytes: [kv_heads * capacity * head_dim rounded up to 16] elements
    ffn_input: QuantizedPlan | Array  # normalised rows of all tokens, for the experts
    expert_ids: Array  # [T, top_k]
    expert_weights: Array  # [T, top_k]
    normed: Array  # [C, hidden]
    normed_quantized: QuantizedPlan
    queries: Array  # [C, query_width]
    new_keys: Array  # [C, kv_width]
    new_values: Array  # [C, kv_width]
    attended: Array  # [C, query_width]
    attended_quantized: QuantizedPlan
    angles: Array  # [2, C, head_dim / 2]
    router_logits: Array  # [C, lanes]
    expert_hidden: Array  # [EXPERT_ROWS, width]
    expert_quantized: QuantizedPlan
    expert_partial: Array  # [T, hidden], where experts are cut into slices
    logits: Array  # [W, vocabulary]

    @property
    def bytes(self) -> int:
        return sum(round_up(array.bytes, _ALIGNMENT) for array in self._arrays())

    @property
    def residual_bytes(self) -> int:
        """Where the arrays behind the residual begin."""
        return round_up(self.residual.bytes, _ALIGNMENT)

    def _arrays(self) -> list[Array]:
        result: list[Array] = []
        for field in fields(self):
            item = getattr(self, field.name)
            result.extend(item.arrays() if isinstance(item, QuantizedPlan) else [item])
        return result

    def carve(self, memory: np.ndarray) -> "Activations":
        """Lay the arrays into uint8 ``memory`` of at least ``bytes``."""
        offset = 0

        def place(array: Array) -> np.ndarray:
            nonlocal offset
            view = memory[offset : offset + array.bytes].view(array.dtype).reshape(array.shape)
            offset += round_up(array.bytes, _ALIGNMENT)
            return view

        placed: dict[str, Any] = {}
        for field in fields(self):
            item = getattr(self, field.name)
            if isinstance(item, QuantizedPlan):
                placed[field.name] = QuantizedArrays(*(place(array) for array in item.arrays()))
            else:
                placed[field.name] = place(item)
        return Activations(**placed)


@dataclass(frozen=True)
class Activations:
    """The arrays of an :class:`ActivationPlan`, in memory."""

    residual: np.ndarray
    last_residual: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    ffn_input: QuantizedArrays | np.ndarray
    expert_ids: np.ndarray
    expert_weights: np.ndarray
    normed: np.ndarray
    normed_quantized: QuantizedArrays
    queries: np.ndarray
    new_keys: np.ndarray
    new_values: np.ndarray
    attended: np.ndarray
    attended_quantized: QuantizedArrays
    angles: np.ndarray
    router_logits: np.ndarray
    expert_hidden: np.ndarray
    expert_quantized: QuantizedArrays
    expert_partial: np.ndarray
    logits: np.ndarray


def plan_activations(
    config: ModelConfig, quantization: Quantization, batch: Batch, float_activations: bool, kv_element_bytes: int = 4
) -> ActivationPlan:
    """The arrays that one sweep of ``batch`` needs; with float activations, the experts' inputs stay float32."""
    tokens, wanted = batch.tokens, len(batch.wanted)
    attention, hidden = config.attention, config.hidden
    chunk, expert_rows = min(tokens, CHUNK), min(tokens, EXPERT_ROWS)

    def padded(width: int) -> int:
        return round_up(width, group_for(width, quantization.group))

    def quantized(rows: int, width: int) -> QuantizedPlan:
        return QuantizedPlan(rows, padded(width), group_for(width, quantization.group))

    width = config.moe.width // quantization.expert_slices
    return ActivationPlan(
        residual=floats(tokens, hidden),
        last_residual=floats(wanted, hidden),
        keys=raw(attention.kv_heads * batch.kv_capacity * attention.head_dim * kv_element_bytes),
        values=raw(attention.kv_heads * batch.kv_capacity * round_up(attention.head_dim, LANES) * kv_element_bytes),
        ffn_input=floats(tokens, padded(hidden)) if float_activations else quantized(tokens, hidden),
        expert_ids=integers(tokens, config.moe.top_k),
        expert_weights=floats(tokens, config.moe.top_k),
        normed=floats(chunk, padded(hidden)),
        normed_quantized=quantized(chunk, hidden),
        queries=floats(chunk, attention.query_width),
        new_keys=floats(chunk, attention.kv_width),
        new_values=floats(chunk, attention.kv_width),
        attended=floats(chunk, padded(attention.query_width)),
        attended_quantized=quantized(chunk, attention.query_width),
        angles=floats(2, chunk, attention.head_dim // 2),
        router_logits=floats(chunk, round_up(config.moe.experts, LANES)),
        expert_hidden=floats(expert_rows, padded(width)),
        expert_quantized=quantized(expert_rows, width),
        expert_partial=floats(tokens if quantization.expert_slices > 1 else 0, hidden),
        logits=floats(wanted, config.vocabulary),
    )
