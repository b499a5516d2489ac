"""Qwen3-Next (``Qwen3NextForCausalLM``): three of four layers have linear attention, whose projections are stored together, key
head by key head.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from estream.models.config import ModelConfig, ModelTensors, TensorRef
from estream.models.decoder import read_decoder, with_dense_layers
from estream.models.huggingface import HfConfig
from estream.models.hybrid import hybrid_tensors, read_hybrid_attention, read_hybrid_moe
from estream.models.qwen2_moe import dense_layers

NAME = "qwen3_next"
ARCHITECTURES = ("Qwen3NextForCausalLM",)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    moe = read_hybrid_moe(hf, hf.flag("norm_topk_prob", True))
    return with_dense_layers(hf, read_decoder(NAME, hf, read_hybrid_attention(hf), moe), dense_layers(hf))


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return hybrid_tensors(config, available, _projections)


def _projections(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    """Rows of ``in_proj_qkvz`` and ``in_proj_ba`` are grouped by key head."""
    delta, hidden = config.attention.delta, config.hidden
    assert delta is not None
    attn, group = f"model.layers.{layer}.linear_attn.", delta.value_heads // delta.key_heads
    mixed = TensorRef(f"{attn}in_proj_qkvz.weight", (delta.conv_dim + delta.value_width, hidden))
    gates = TensorRef(f"{attn}in_proj_ba.weight", (2 * delta.value_heads, hidden))
    q, k, v, z = _grouped(delta.key_heads, (delta.key_dim, delta.key_dim, group * delta.value_dim, group * delta.value_dim))
    b, a = _grouped(delta.key_heads, (group, group))
    return {
        "qkv": replace(mixed, order=q + k + v),
        "z": replace(mixed, order=z),
        "b": replace(gates, order=b),
        "a": replace(gates, order=a),
    }


def _grouped(heads: int, widths: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The rows of each kind, where every head has its rows of the first kind, then of the second, ..."""
    step, starts = sum(widths), [sum(widths[:n]) for n in range(len(widths))]
    return [
        tuple(step * head + start + i for head in range(heads) for i in range(width))
        for start, width in zip(starts, widths, strict=True)
    ]
