"""Mixtral (``MixtralForCausalLM``): few, large experts; the weights of a token's experts sum to 1.
Paper: arXiv 2401.04088.
"""

from collections.abc import Mapping
from typing import Any

from estream.models.config import ModelConfig, ModelTensors
from estream.models.decoder import MoeNames, decoder_tensors, read_attention, read_decoder, read_moe
from estream.models.huggingface import HfConfig

NAME = "mixtral"
ARCHITECTURES = ("MixtralForCausalLM",)

_NAMES = MoeNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{e}.w1",
    up="block_sparse_moe.experts.{e}.w3",
    down="block_sparse_moe.experts.{e}.w2",
    fused="mlp.experts.",
)
_NEW_NAMES = MoeNames("mlp.gate", _NAMES.gate, _NAMES.up, _NAMES.down, _NAMES.fused)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    hf.require("sliding_window", None, None)
    attention = read_attention(hf, hf.integer("hidden_size"), "none")
    return read_decoder(NAME, hf, attention, read_moe(hf, "intermediate_size", normalise=True))


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    names = _NEW_NAMES if "model.layers.0.mlp.gate.weight" in available else _NAMES
    return decoder_tensors(config, names, available)
