"""Qwen3-MoE (``Qwen3MoeForCausalLM``): many small experts; queries and keys are normalised head by head.
Report: arXiv 2505.09388.
"""

from collections.abc import Mapping
from typing import Any

from estream.models.config import ModelConfig, ModelTensors
from estream.models.decoder import MoeNames, decoder_tensors, read_attention, read_decoder, read_moe
from estream.models.huggingface import HfConfig

NAME = "qwen3_moe"
ARCHITECTURES = ("Qwen3MoeForCausalLM",)

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
    hf.require("decoder_sparse_step", 1, 1)
    hf.require("mlp_only_layers", [], [])
    hf.require("use_sliding_window", False, False)
    attention = read_attention(hf, hf.integer("hidden_size"), "head")
    return read_decoder(NAME, hf, attention, read_moe(hf, "moe_intermediate_size", hf.flag("norm_topk_prob", False)))


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return decoder_tensors(config, _NAMES, available)
