"""Qwen3-Next (``Qwen3NextForCausalLM``): three of four layers have linear attention, with fused projections."""

from collections.abc import Mapping
from functools import lru_cache
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
    """``in_proj_qkvz`` has the q, k, v and z rows of the first key head, then those of the second; likewise ``in_proj_ba``."""
    delta, hidden = config.attention.delta, config.hidden
    assert delta is not None
    attn, values_per_key = f"model.layers.{layer}.linear_attn.", delta.value_heads // delta.key_heads
    qkvz = TensorRef(f"{attn}in_proj_qkvz.weight", (delta.conv_dim + delta.value_width, hidden))
    ba = TensorRef(f"{attn}in_proj_ba.weight", (2 * delta.value_heads, hidden))
    value_rows = values_per_key * delta.value_dim
    q, k, v, z = _split_by_head(delta.key_heads, (delta.key_dim, delta.key_dim, value_rows, value_rows))
    b, a = _split_by_head(delta.key_heads, (values_per_key, values_per_key))
    return {
        "qkv": replace(qkvz, order=q + k + v),
        "z": replace(qkvz, order=z),
        "b": replace(ba, order=b),
        "a": replace(ba, order=a),
    }


@lru_cache(maxsize=8)
def _split_by_head(heads: int, counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The rows of each projection in a fused one, where each head has ``counts[0]`` rows of the first, then ``counts[1]`` of
    the second, and so on.
    """
    head_rows, starts = sum(counts), [sum(counts[:n]) for n in range(len(counts))]
    return [
        tuple(head_rows * head + start + i for head in range(heads) for i in range(count))
        for start, count in zip(starts, counts, strict=True)
    ]
