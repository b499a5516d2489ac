"""OLMoE (``OlmoeForCausalLM``). Paper: arXiv 2409.02060.

Every layer is a mixture of experts. Norms act on the whole query and key projections, before they are split into heads.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from estream.models.config import ModelConfig, ModelTensors
from estream.models.decoder import DECODER_NAMES, decoder_tensors, read_attention, read_decoder, read_moe
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import RopeDefaults

NAME = "olmoe"
ARCHITECTURES = ("OlmoeForCausalLM",)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    hf.require("attention_bias", False, False)
    clip = hf.positive("clip_qkv") if hf.values.get("clip_qkv") is not None else None
    attention = replace(read_attention(hf, RopeDefaults(), "projection"), clip_qkv=clip)
    return read_decoder(NAME, hf, attention, read_moe(hf, "intermediate_size", hf.flag("norm_topk_prob", False)))


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return decoder_tensors(config, DECODER_NAMES, available)
