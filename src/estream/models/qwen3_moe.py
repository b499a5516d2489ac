"""Qwen3-MoE (``Qwen3MoeForCausalLM``): 128 small experts, norms on each query and key head. Paper: arXiv 2505.09388."""

from collections.abc import Mapping
from typing import Any

from estream.models.config import ModelConfig, ModelTensors
from estream.models.decoder import DECODER_NAMES, decoder_tensors, read_attention, read_decoder, read_moe, with_dense_layers
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import RopeDefaults
from estream.models.qwen2_moe import dense_layers

NAME = "qwen3_moe"
ARCHITECTURES = ("Qwen3MoeForCausalLM",)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    hf.require("attention_bias", False, False)
    hf.require("use_sliding_window", False, False)
    attention = read_attention(hf, RopeDefaults(), "head", kv_heads=4)
    moe = read_moe(hf, "moe_intermediate_size", hf.flag("norm_topk_prob", False))
    return with_dense_layers(hf, read_decoder(NAME, hf, attention, moe), dense_layers(hf))


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return decoder_tensors(config, DECODER_NAMES, available)
