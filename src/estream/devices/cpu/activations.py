"""Activations of the CPU device. Each array stands here once: its name, its dtype, and its shape as a function of the sizes."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from estream import _native
from estream.engine.activations import Carver
from estream.engine.batch import BatchShape
from estream.engine.head import HeadArrays
from estream.host.sizes import round_up
from estream.models.config import DeltaConfig, LatentConfig, ModelConfig
from estream.package.layout import Quantization
from estream.package.parts import SIMD_WIDTH, group_for

#: Tokens that attention and the router work on at once.
CHUNK = 512
#: Rows that a head page is multiplied with at once, and the most logits that they may have: these exist until they are reduced.
HEAD_ROWS, _HEAD_LOGITS = 256, 4 << 20
#: Tokens of one MLP whose intermediate activations exist at once.
EXPERT_ROWS = 256


@dataclass(frozen=True)
class QuantizedArrays:
    """Quantised rows: codes int8 [rows, columns], scales float32 and code sums int32 [rows, groups]."""

    codes: np.ndarray
    scales: np.ndarray
    sums: np.ndarray

    def rows(self, first: int, end: int) -> "_native.Quantized":
        return _native.Quantized(self.codes[first:end], self.scales[first:end], self.sums[first:end])


@dataclass(frozen=True)
class QuantizedShape:
    """The shape of a :class:`QuantizedArrays` to come."""

    rows: int
    columns: int
    group: int

    def carve(self, take: Carver) -> QuantizedArrays:
        groups = self.columns // self.group
        codes = take(np.int8, self.rows, self.columns)
        return QuantizedArrays(codes, take(np.float32, self.rows, groups), take(np.int32, self.rows, groups))


@dataclass(frozen=True)
class ActivationSizes:
    """The sizes that arrays are made of: those of the model, of the batch and of what is computed at once.

    With ``exact``, weights multiply float32 rows and not quantised ones. What a model does not have has size 0.
    """

    config: ModelConfig
    quantization: Quantization
    batch: BatchShape
    exact: bool
    kv_element_bytes: int

    @property
    def tokens(self) -> int:
        return self.batch.tokens

    @property
    def head_logits(self) -> int:
        """Logits of one head page that exist at once."""
        columns = min(self.quantization.head_rows, self.config.vocabulary)
        return columns * max(1, min(self.batch.head.rows, HEAD_ROWS, _HEAD_LOGITS // columns))

    @property
    def hidden(self) -> int:
        return self.config.hidden

    @property
    def chunk(self) -> int:
        return min(self.tokens, CHUNK)

    @property
    def exact_chunk(self) -> int:
        """Rows of a chunk that are kept normalised in float32."""
        return self.chunk if self.exact else 0

    @property
    def expert_rows(self) -> int:
        return min(self.tokens, EXPERT_ROWS)

    @property
    def latent(self) -> LatentConfig:
        return self.config.attention.latent or LatentConfig(0, 0, 0.0)

    @property
    def delta(self) -> DeltaConfig:
        return self.config.attention.delta or DeltaConfig(0, 0, 0, 0, 1)

    @property
    def rope_dim(self) -> int:
        """Rotated values of a head that latent attention keeps apart."""
        attention = self.config.attention
        return attention.rope.dims if attention.latent else 0

    @property
    def nope_dim(self) -> int:
        """Values of a head that latent attention does not rotate."""
        attention = self.config.attention
        return attention.head_dim - attention.rope.dims if attention.latent else 0

    @property
    def served_tokens(self) -> int:
        """Tokens with a weight for the MLP that serves every token."""
        return self.tokens if self.config.moe.shared_intermediate_size or self.config.dense_layers else 0

    @property
    def sliced_tokens(self) -> int:
        """Tokens whose partial sums wait between the slices of an expert."""
        return self.tokens if self.quantization.expert_slices > 1 else 0

    def padded(self, columns: int) -> int:
        return round_up(columns, group_for(columns, self.quantization.group))

    def quantized(self, rows: int, columns: int) -> QuantizedShape:
        return QuantizedShape(rows, self.padded(columns), group_for(columns, self.quantization.group))

    def kv_bytes(self, head_dim: int) -> int:
        """Bytes of the keys or values of one layer, in the device's own order."""
        return self.config.attention.kv_heads * self.batch.kv_capacity * head_dim * self.kv_element_bytes

    def _mlp_sizes(self) -> list[int]:
        """Intermediate sizes of MLP pages."""
        config, cut = self.config, self.quantization
        sizes = [config.moe.intermediate_size // cut.expert_slices]
        return sizes + [config.mlp_intermediate_size(n) // cut.shared_slices_of(config, n) for n in range(config.layers)]

    @property
    def widest_mlp(self) -> int:
        return max(map(self.padded, self._mlp_sizes()))

    @property
    def most_mlp_groups(self) -> int:
        return max(self.padded(n) // group_for(n, self.quantization.group) for n in self._mlp_sizes())


#: Makes one array of a sweep of these sizes.
_Maker = Callable[[Carver, ActivationSizes], "np.ndarray | QuantizedArrays | HeadArrays"]


def _made_by(maker: _Maker) -> Any:
    return field(metadata={"make": maker})


def _array(dtype: type[np.generic], shape: Callable[[ActivationSizes], tuple[int, ...]]) -> Any:
    return _made_by(lambda take, s: take(dtype, *shape(s)))


def _floats(shape: Callable[[ActivationSizes], tuple[int, ...]]) -> Any:
    return _array(np.float32, shape)


def _quantized(columns: Callable[[ActivationSizes], int]) -> Any:
    """The rows of a chunk, quantised."""
    return _made_by(lambda take, s: s.quantized(s.chunk, columns(s)).carve(take))


def _ffn_input(take: Carver, s: ActivationSizes) -> np.ndarray | QuantizedArrays:
    if s.exact:
        return take(np.float32, s.tokens, s.padded(s.hidden))
    return s.quantized(s.tokens, s.hidden).carve(take)


@dataclass(frozen=True)
class Activations:
    """The arrays of one batch, float32 where nothing else is said. ``..._normed`` exists with float activations alone."""

    residual: np.ndarray = _floats(lambda s: (s.tokens, s.hidden))
    keys: np.ndarray = _array(np.uint8, lambda s: (s.kv_bytes(s.config.attention.head_dim),))
    values: np.ndarray = _array(np.uint8, lambda s: (s.kv_bytes(round_up(s.config.attention.value_dim, SIMD_WIDTH)),))
    # Normalised rows of all tokens, for the experts; the choice of experts, and the weights of the shared expert.
    ffn_input: QuantizedArrays | np.ndarray = _made_by(_ffn_input)
    expert_ids: np.ndarray = _array(np.int32, lambda s: (s.tokens, s.config.moe.top_k))
    expert_weights: np.ndarray = _floats(lambda s: (s.tokens, s.config.moe.top_k))
    shared_weights: np.ndarray = _floats(lambda s: (s.served_tokens,))
    # Attention, a chunk at a time.
    normed: np.ndarray = _floats(lambda s: (s.exact_chunk, s.padded(s.hidden)))
    normed_quantized: QuantizedArrays = _quantized(lambda s: s.hidden)
    queries: np.ndarray = _floats(lambda s: (s.chunk, s.config.attention.query_width))
    new_keys: np.ndarray = _floats(lambda s: (s.chunk, s.config.attention.key_width))
    new_values: np.ndarray = _floats(lambda s: (s.chunk, s.config.attention.value_width))
    output_gates: np.ndarray = _floats(
        lambda s: (s.chunk, s.config.attention.output_width if s.config.attention.output_gate else 0)
    )
    attended: np.ndarray = _floats(lambda s: (s.chunk, s.padded(s.config.attention.output_width)))
    attended_quantized: QuantizedArrays = _quantized(lambda s: s.config.attention.output_width)
    angles: np.ndarray = _floats(lambda s: (2, s.tokens, s.config.attention.rope.dims // 2))
    # Latent attention.
    kv_latent: np.ndarray = _floats(lambda s: (s.chunk, s.latent.kv_lora_rank))
    kv_latent_normed: np.ndarray = _floats(lambda s: (s.exact_chunk, s.padded(s.latent.kv_lora_rank)))
    kv_latent_quantized: QuantizedArrays = _quantized(lambda s: s.latent.kv_lora_rank)
    q_latent: np.ndarray = _floats(lambda s: (s.chunk, s.latent.q_lora_rank))
    q_latent_normed: np.ndarray = _floats(lambda s: (s.exact_chunk, s.padded(s.latent.q_lora_rank)))
    q_latent_quantized: QuantizedArrays = _quantized(lambda s: s.latent.q_lora_rank)
    k_nope: np.ndarray = _floats(lambda s: (s.chunk, s.config.attention.heads * s.nope_dim))
    k_rope: np.ndarray = _floats(lambda s: (s.chunk, s.rope_dim))
    # Linear attention: the last rows of the chunk before, then this chunk's; the state is that of the prompt at hand.
    conv_input: np.ndarray = _floats(lambda s: (s.chunk + s.delta.conv_kernel_size - 1, s.delta.conv_dim))
    conv_output: np.ndarray = _floats(lambda s: (s.chunk, s.delta.conv_dim))
    delta_rates: np.ndarray = _floats(lambda s: (s.chunk, 2 * s.delta.value_heads))
    delta_gates: np.ndarray = _floats(lambda s: (s.chunk, s.delta.value_width))
    delta_state: np.ndarray = _floats(lambda s: (s.delta.value_heads, s.delta.key_dim, s.delta.value_dim))
    # What later branches of a prompt take back.
    saved_conv: np.ndarray = _floats(lambda s: (s.batch.states, s.delta.conv_kernel_size - 1, s.delta.conv_dim))
    saved_states: np.ndarray = _floats(lambda s: (s.batch.states, s.delta.value_heads, s.delta.key_dim, s.delta.value_dim))
    delta_read: np.ndarray = _floats(lambda s: (s.chunk, s.delta.value_width))
    delta_output: np.ndarray = _floats(lambda s: (s.chunk, s.padded(s.delta.value_width)))
    delta_output_quantized: QuantizedArrays = _quantized(lambda s: s.delta.value_width)
    # One MLP page, sized for the widest: see :meth:`mlp_scratch`.
    mlp_hidden: np.ndarray = _floats(lambda s: (s.expert_rows, s.widest_mlp))
    mlp_codes: np.ndarray = _array(np.int8, lambda s: (s.expert_rows, s.widest_mlp))
    mlp_scales: np.ndarray = _floats(lambda s: (s.expert_rows, s.most_mlp_groups))
    mlp_sums: np.ndarray = _array(np.int32, lambda s: (s.expert_rows, s.most_mlp_groups))
    expert_partial: np.ndarray = _floats(lambda s: (s.sliced_tokens, s.hidden))
    # The head: the logits of one page for some rows, and what is left of all pages.
    head_logits: np.ndarray = _floats(lambda s: (s.head_logits,))
    head: HeadArrays = _made_by(lambda take, s: HeadArrays.carve(take, s.batch.head, s.config.vocabulary, s.hidden))

    def mlp_scratch(self, columns: int, group: int) -> "tuple[np.ndarray, _native.Quantized]":
        """Room for the intermediate activations of an MLP page whose ``down`` has ``columns`` inputs."""
        rows, groups = len(self.mlp_hidden), columns // group

        def first(array: np.ndarray, columns: int) -> np.ndarray:
            return array.reshape(-1)[: rows * columns].reshape(rows, columns)

        codes, scales, sums = first(self.mlp_codes, columns), first(self.mlp_scales, groups), first(self.mlp_sums, groups)
        quantized = QuantizedArrays(codes, scales, sums)
        return first(self.mlp_hidden, columns), quantized.rows(0, rows)


@dataclass(frozen=True)
class ActivationPlan:
    """The :class:`Activations` to come; an :class:`ArraysPlan`."""

    sizes: ActivationSizes

    def _carve(self, take: Carver) -> dict[str, Any]:
        return {each.name: each.metadata["make"](take, self.sizes) for each in fields(Activations)}

    @cached_property
    def bytes(self) -> int:
        take = Carver()
        self._carve(take)
        return take.offset

    @property
    def residual_bytes(self) -> int:
        take = Carver()
        take(np.float32, self.sizes.tokens, self.sizes.hidden)
        return take.offset

    def carve(self, memory: np.ndarray) -> Activations:
        return Activations(**self._carve(Carver(memory)))
