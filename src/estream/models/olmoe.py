"""OLMoE (``OlmoeForCausalLM``): every layer is a mixture of experts, and queries and keys are normalised over the whole
projection before they are split into heads. Paper: arXiv 2409.02060.
"""

from collections.abc import Mapping
from typing import Any

from estream.models.config import ModelConfig, ModelTensors
from estream.models.decoder import MoeNames, decoder_tensors, read_attention, read_decoder, read_moe
from estream.models.huggingface import HfConfig

NAME = "olmoe"
ARCHITECTURES = ("OlmoeForCausalLM",)

_NAMES = MoeNames(
    router="mlp.gate",
    gate="mlp.experts.{e}.gate_proj",
    up="mlp.experts.{e}.up_proj",
    down="mlp.experts.{e}.down_proj",
    fused="mlp.experts.",
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    clip = hf.number("clip_qkv") if values.get("clip_qkv") is not None else None
    attention = read_attention(hf, hf.integer("hidden_size"), "projection", clip)
    moe = read_moe(hf, "intermediate_size", hf.flag("norm_topk_prob", False))
    return read_decoder(NAME, hf, attention, moe)


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return decoder_tensors(config, _NAMES, available)
