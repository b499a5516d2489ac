"""Activations of one batch: every array's size is known before any of them exists, and all of them lie in the arena."""

from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from estream import _native
from estream.engine.batch import Batch
from estream.host.sizes import round_up
from estream.models.config import DeltaConfig, ModelConfig
from estream.package.layout import Quantization
from estream.package.parts import LANES, group_for

#: Tokens that attention and the router work on at once.
CHUNK = 512
#: Tokens of one MLP whose intermediate activations exist at once.
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


class SweepArrays(Protocol):
    """What the engine itself sees of a sweep's arrays; the rest is between a device and its plan."""

    @property
    def residual(self) -> np.ndarray:
        """[T or more, hidden] in the device's own type; the engine fills in the embedding rows."""

    @property
    def logits(self) -> np.ndarray:
        """float32 [W, vocabulary]."""


class SweepPlan(Protocol):
    """The arrays of a sweep to come."""

    @property
    def bytes(self) -> int: ...

    @property
    def residual_bytes(self) -> int:
        """Where the arrays behind the residual begin."""

    def carve(self, memory: np.ndarray) -> SweepArrays:
        """Lay the arrays into uint8 ``memory`` of at least ``bytes``."""


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
    """The arrays that a batch of ``tokens`` needs. T tokens, C = min(T, CHUNK), W wanted rows; widths padded to groups.

    What a model does not need has no bytes: latent arrays without latent attention, and so on.
    """

    residual: Array  # [T, hidden]
    last_residual: Array  # [W, hidden]
    keys: Array  # bytes: [kv_heads * capacity * head_dim] elements, in the device's own order
    values: Array  # bytes: [kv_heads * capacity * value_dim rounded up to 16] elements
    ffn_input: QuantizedPlan | Array  # normalised rows of all tokens, for the experts
    expert_ids: Array  # [T, top_k]
    expert_weights: Array  # [T, top_k]
    shared_weights: Array  # [T], of the MLP that serves every token
    normed: Array  # [C, hidden], of float activations alone; so the other normalised rows
    normed_quantized: QuantizedPlan
    queries: Array  # [C, query_width]
    new_keys: Array  # [C, key_width]
    new_values: Array  # [C, value_width]
    latent: Array  # [C, kv_rank], and the same normalised
    latent_normed: Array
    latent_quantized: QuantizedPlan
    query_latent: Array  # [C, query_rank], and the same normalised
    query_latent_normed: Array
    query_latent_quantized: QuantizedPlan
    plain_keys: Array  # [C, heads * (head_dim - rotated)]
    rotated_keys: Array  # [C, rotated], which all heads share
    gates: Array  # [C, output_width], where outputs are gated
    linear_inputs: Array  # [C + taps - 1, mixed_width]: the last rows of the chunk before, then this chunk's
    linear_mixed: Array  # [C, mixed_width]
    linear_rates: Array  # [C, 2 * value_heads]
    linear_gates: Array  # [C, value_width]
    linear_state: Array  # [value_heads, key_dim, value_dim], of the prompt at hand
    linear_read: Array  # [C, value_width], and the same gated
    linear_out: Array
    linear_out_quantized: QuantizedPlan
    attended: Array  # [C, output_width]
    attended_quantized: QuantizedPlan
    angles: Array  # [2, T, rotated / 2]
    mlp_hidden: Array  # [EXPERT_ROWS, widest MLP page], used as [EXPERT_ROWS, width] of the page at hand; so the next three
    mlp_codes: Array  # [EXPERT_ROWS, widest]
    mlp_scales: Array  # [EXPERT_ROWS, most groups]
    mlp_sums: Array  # [EXPERT_ROWS, most groups]
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
    shared_weights: np.ndarray
    normed: np.ndarray
    normed_quantized: QuantizedArrays
    queries: np.ndarray
    new_keys: np.ndarray
    new_values: np.ndarray
    latent: np.ndarray
    latent_normed: np.ndarray
    latent_quantized: QuantizedArrays
    query_latent: np.ndarray
    query_latent_normed: np.ndarray
    query_latent_quantized: QuantizedArrays
    plain_keys: np.ndarray
    rotated_keys: np.ndarray
    gates: np.ndarray
    linear_inputs: np.ndarray
    linear_mixed: np.ndarray
    linear_rates: np.ndarray
    linear_gates: np.ndarray
    linear_state: np.ndarray
    linear_read: np.ndarray
    linear_out: np.ndarray
    linear_out_quantized: QuantizedArrays
    attended: np.ndarray
    attended_quantized: QuantizedArrays
    angles: np.ndarray
    mlp_hidden: np.ndarray
    mlp_codes: np.ndarray
    mlp_scales: np.ndarray
    mlp_sums: np.ndarray
    expert_partial: np.ndarray
    logits: np.ndarray

    def mlp_scratch(self, width: int, group: int) -> "tuple[np.ndarray, _native.Quantized]":
        """Room for the intermediate activations of an MLP page whose ``down`` has so many inputs."""
        rows, groups = len(self.mlp_hidden), width // group

        def first(array: np.ndarray, columns: int) -> np.ndarray:
            return array.reshape(-1)[: rows * columns].reshape(rows, columns)

        quantized = QuantizedArrays(first(self.mlp_codes, width), first(self.mlp_scales, groups), first(self.mlp_sums, groups))
        return first(self.mlp_hidden, width), quantized.rows(0, rows)


def plan_activations(
    config: ModelConfig, quantization: Quantization, batch: Batch, float_activations: bool, kv_element_bytes: int = 4
) -> ActivationPlan:
    """The arrays that one sweep of ``batch`` needs; with float activations, the experts' inputs stay float32."""
    tokens, wanted = batch.tokens, len(batch.wanted)
    attention, hidden = config.attention, config.hidden
    chunk, expert_rows = min(tokens, CHUNK), min(tokens, EXPERT_ROWS)
    # Normalised rows are kept as floats only where those are what weights multiply.
    exact = chunk if float_activations else 0

    def padded(width: int) -> int:
        return round_up(width, group_for(width, quantization.group))

    def quantized(rows: int, width: int) -> QuantizedPlan:
        return QuantizedPlan(rows, padded(width), group_for(width, quantization.group))

    delta = attention.delta or DeltaConfig(0, 0, 0, 0, 1)
    latent = attention.latent
    kv_rank, query_rank = (latent.kv_lora_rank, latent.q_lora_rank) if latent else (0, 0)
    plain, rotated = (attention.head_dim - attention.rope.dims, attention.rope.dims) if latent else (0, 0)
    widths = [config.moe.intermediate_size // quantization.expert_slices]
    widths += [config.mlp_intermediate_size(n) // quantization.shared_slices_of(config, n) for n in range(config.layers)]
    widest = max(map(padded, widths))
    groups = max(padded(n) // group_for(n, quantization.group) for n in widths)
    return ActivationPlan(
        residual=floats(tokens, hidden),
        last_residual=floats(wanted, hidden),
        keys=raw(attention.kv_heads * batch.kv_capacity * attention.head_dim * kv_element_bytes),
        values=raw(attention.kv_heads * batch.kv_capacity * round_up(attention.value_dim, LANES) * kv_element_bytes),
        ffn_input=floats(tokens, padded(hidden)) if float_activations else quantized(tokens, hidden),
        expert_ids=integers(tokens, config.moe.top_k),
        expert_weights=floats(tokens, config.moe.top_k),
        shared_weights=floats(tokens if config.moe.shared_intermediate_size or config.dense_layers else 0),
        normed=floats(exact, padded(hidden)),
        normed_quantized=quantized(chunk, hidden),
        queries=floats(chunk, attention.query_width),
        new_keys=floats(chunk, attention.key_width),
        new_values=floats(chunk, attention.value_width),
        latent=floats(chunk, kv_rank),
        latent_normed=floats(exact, padded(kv_rank)),
        latent_quantized=quantized(chunk, kv_rank),
        query_latent=floats(chunk, query_rank),
        query_latent_normed=floats(exact, padded(query_rank)),
        query_latent_quantized=quantized(chunk, query_rank),
        plain_keys=floats(chunk, attention.heads * plain),
        rotated_keys=floats(chunk, rotated),
        gates=floats(chunk, attention.output_width if attention.output_gate else 0),
        linear_inputs=floats(chunk + delta.conv_kernel_size - 1, delta.conv_dim),
        linear_mixed=floats(chunk, delta.conv_dim),
        linear_rates=floats(chunk, 2 * delta.value_heads),
        linear_gates=floats(chunk, delta.value_width),
        linear_state=floats(delta.value_heads, delta.key_dim, delta.value_dim),
        linear_read=floats(chunk, delta.value_width),
        linear_out=floats(chunk, padded(delta.value_width)),
        linear_out_quantized=quantized(chunk, delta.value_width),
        attended=floats(chunk, padded(attention.output_width)),
        attended_quantized=quantized(chunk, attention.output_width),
        angles=floats(2, tokens, attention.rope.dims // 2),
        mlp_hidden=floats(expert_rows, widest),
        mlp_codes=Array((expert_rows, widest), np.dtype(np.int8)),
        mlp_scales=floats(expert_rows, groups),
        mlp_sums=integers(expert_rows, groups),
        expert_partial=floats(tokens if quantization.expert_slices > 1 else 0, hidden),
        logits=floats(wanted, config.vocabulary),
    )
