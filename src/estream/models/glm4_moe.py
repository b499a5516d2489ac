"""GLM-4.5 to 4.7 (``Glm4MoeForCausalLM``). Report: arXiv 2508.06471.

Grouped-query attention with rotary positions on half of each head, and DeepSeek-V3's routing.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from estream.models.config import ModelConfig, ModelTensors, QkNorm
from estream.models.decoder import DECODER_NAMES, decoder_tensors, read_attention, read_decoder, with_first_layers_dense
from estream.models.deepseek_v3 import read_corrected_moe
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import RopeDefaults

NAME = "glm4_moe"
ARCHITECTURES = ("Glm4MoeForCausalLM",)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    qk_norm: QkNorm = "head" if hf.flag("use_qk_norm", False) else "none"
    attention = read_attention(hf, RopeDefaults(partial_rotary_factor=0.5), qk_norm, kv_heads=8)
    attention = replace(attention, input_bias=hf.flag("attention_bias", False))
    config = read_decoder(NAME, hf, attention, read_corrected_moe(hf, groups=(1, 1), scaling=1.0))
    return with_first_layers_dense(hf, config, default=1)


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return decoder_tensors(config, DECODER_NAMES, available)
