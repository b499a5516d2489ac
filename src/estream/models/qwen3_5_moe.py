"""Qwen3.5-MoE and Qwen3.6-MoE (``Qwen3_5MoeForConditionalGeneration``, ``Qwen3_5MoeForCausalLM``).

The architecture of Qwen3-Next, but each projection is one tensor. The checkpoint may be multimodal. Its M-RoPE gives a token
three positions (time, height, width); in text all three are equal, so ``mrope_section`` has no effect.
"""

from collections.abc import Mapping
from typing import Any

from estream.errors import CheckpointError
from estream.models.config import ModelConfig, ModelTensors, TensorRef
from estream.models.decoder import read_decoder
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import ROPE_KEYS
from estream.models.hybrid import hybrid_tensors, read_hybrid_attention, read_hybrid_moe
from estream.models.multimodal import text_settings, text_tensors
from estream.schema import shown

NAME = "qwen3_5_moe"
ARCHITECTURES = ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM")

_MROPE_KEYS = ("mrope_section", "mrope_interleaved")


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(_without_mrope(text_settings(values)))
    hf.require("attn_output_gate", True, True)
    # The models' code has no settings for these: every layer has experts, and a token's expert weights sum to 1.
    hf.require("norm_topk_prob", True, True)
    hf.require("decoder_sparse_step", 1, 1)
    hf.require("mlp_only_layers", [], [])
    return read_decoder(NAME, hf, read_hybrid_attention(hf), read_hybrid_moe(hf, norm_topk_prob=True))


def _without_mrope(values: Mapping[str, Any]) -> Mapping[str, Any]:
    rope = {key: values[key] for key in ROPE_KEYS if isinstance(values.get(key), Mapping)}
    for parameters in rope.values():
        if not isinstance(parameters.get("mrope_section", []), list):
            raise CheckpointError(f"config.json: 'mrope_section' must be a list, found {shown(parameters['mrope_section'])}")
    return {
        **values,
        **{key: {name: x for name, x in parameters.items() if name not in _MROPE_KEYS} for key, parameters in rope.items()},
    }


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return text_tensors(available, lambda names: hybrid_tensors(config, names, _projections))


def _projections(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    delta, hidden = config.attention.delta, config.hidden
    assert delta is not None
    outputs = {"qkv": delta.conv_dim, "z": delta.value_width, "b": delta.value_heads, "a": delta.value_heads}
    attn = f"model.layers.{layer}.linear_attn."
    return {part: TensorRef(f"{attn}in_proj_{part}.weight", (count, hidden)) for part, count in outputs.items()}
