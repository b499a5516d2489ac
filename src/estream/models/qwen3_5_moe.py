"""Qwen3.5-MoE and Qwen3.6-MoE (``Qwen3_5MoeForConditionalGeneration``, ``Qwen3_5MoeForCausalLM``): the build of Qwen3-Next with
each projection a tensor of its own, as the language model of a checkpoint that reads pictures, too.

A token's three positions (time, height, width) are the same in text, so that its rotary positions are the usual ones whatever
``mrope_section`` says.
"""

from collections.abc import Mapping
from typing import Any

from estream.models.config import ModelConfig, ModelTensors, TensorRef
from estream.models.decoder import read_decoder
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import ROPE_SPELLINGS
from estream.models.hybrid import hybrid_tensors, read_hybrid_attention, read_hybrid_moe
from estream.models.multimodal import text_settings, text_tensors

NAME = "qwen3_5_moe"
ARCHITECTURES = ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM")

_OF_PICTURES = ("mrope_section", "mrope_interleaved")


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(_with_text_positions(text_settings(values)))
    hf.require("attn_output_gate", True, True)
    # All layers have experts, whose weights sum to 1: the models' code asks for no setting.
    hf.require("norm_topk_prob", True, True)
    hf.require("decoder_sparse_step", 1, 1)
    hf.require("mlp_only_layers", [], [])
    return read_decoder(NAME, hf, read_hybrid_attention(hf), read_hybrid_moe(hf, normalise=True))


def _with_text_positions(values: Mapping[str, Any]) -> Mapping[str, Any]:
    rope = {key: values[key] for key in ROPE_SPELLINGS if isinstance(values.get(key), Mapping)}
    return {
        **values,
        **{key: {name: value for name, value in of.items() if name not in _OF_PICTURES} for key, of in rope.items()},
    }


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return text_tensors(available, lambda names: hybrid_tensors(config, names, _projections))


def _projections(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    delta, hidden = config.attention.delta, config.hidden
    assert delta is not None
    widths = {"qkv": delta.conv_dim, "z": delta.value_width, "b": delta.value_heads, "a": delta.value_heads}
    attn = f"model.layers.{layer}.linear_attn."
    return {part: TensorRef(f"{attn}in_proj_{part}.weight", (width, hidden)) for part, width in widths.items()}
