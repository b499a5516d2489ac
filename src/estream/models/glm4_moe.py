"""GLM-4.5 to 4.7 (``Glm4MoeForCausalLM``). Report: arXiv 2508.06471.

Grouped-query attention with rotary positions on half of each head, and DeepSeek-V3's routing.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from estream.models.config import ModelConfig, ModelTensors
from estream.models.decoder import DECODER_NAMES, decoder_tensors, read_attention, read_decoder, with_dense_layers
from estream.models.deepseek_v3 import read_corrected_moe
from estream.models.huggingface import HfConfig

NAME = "glm4_moe"
ARCHITECTURES = ("Glm4MoeForCausalLM",)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    attention = read_attention(hf, hf.integer("hidden_size"), "head" if hf.flag("use_qk_norm", False) else "none")
    attention = replace(attention, input_bias=hf.flag("attention_bias", False))
    config = read_decoder(NAME, hf, attention, read_corrected_moe(hf))
    return with_dense_layers(hf, config, range(hf.count("first_k_dense_replace")))


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return decoder_tensors(config, DECODER_NAMES, available)
