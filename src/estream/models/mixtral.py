"""Mixtral (``MixtralForCausalLM``): 8 large experts, 2 per token, whose weights sum to 1. Paper: arXiv 2401.04088."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from estream.models.config import ModelConfig, ModelTensors
from estream.models.decoder import MoeNames, decoder_tensors, read_attention, read_decoder, read_moe, with_sliding_window
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import RopeDefaults

NAME = "mixtral"
ARCHITECTURES = ("MixtralForCausalLM",)

_NAMES = MoeNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{e}.w1",
    up="block_sparse_moe.experts.{e}.w3",
    down="block_sparse_moe.experts.{e}.w2",
    fused="mlp.experts.",
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    hf.require("attention_bias", False, False)
    attention = read_attention(hf, RopeDefaults(theta=1000000.0), kv_heads=8, head_dim_nullable=True)
    config = read_decoder(NAME, hf, attention, read_moe(hf, "intermediate_size", norm_topk_prob=True))
    return with_sliding_window(config, hf.window(), range(config.layers))


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    transformers_5 = "model.layers.0.mlp.gate.weight" in available
    return decoder_tensors(config, replace(_NAMES, router="mlp.gate") if transformers_5 else _NAMES, available)
