"""Phi-3.5-MoE (``PhimoeForCausalLM``). Papers: arXiv 2404.14219, GRIN (arXiv 2409.12136).

Layer norms, biases on attention and head, LongRoPE, and two experts per token, which sparsemixer chooses.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from estream.models.config import ModelConfig, ModelTensors
from estream.models.decoder import MoeNames, decoder_tensors, read_attention, read_decoder, read_moe, with_sliding_window
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import RopeDefaults, rope_parameters

NAME = "phimoe"
ARCHITECTURES = ("PhimoeForCausalLM", "PhiMoEForCausalLM")

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
    hf.require("num_experts_per_tok", 2, 2)
    biased, rope = hf.flag("attention_bias", False), RopeDefaults(theta=1000000.0)
    parameters = rope_parameters(hf, rope)
    if parameters.get("rope_type", parameters.get("type", "default")) != "default":
        # The family's class demands these, and looks for them nowhere else.
        for key in ("short_mscale", "long_mscale", "original_max_position_embeddings"):
            HfConfig(parameters).number(key)
    attention = read_attention(hf, rope, kv_heads=8)
    attention = replace(attention, input_bias=biased, output_bias=biased)
    moe = replace(
        read_moe(hf, "intermediate_size", norm_topk_prob=False),
        scoring="sparsemixer",
        router_jitter_noise=hf.not_negative("router_jitter_noise", 0.01),
    )
    config = replace(read_decoder(NAME, hf, attention, moe), norm="layer", head_bias=hf.flag("lm_head_bias", False))
    return with_sliding_window(config, hf.window(), range(config.layers))


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    transformers_5 = "model.layers.0.mlp.router.weight" in available
    return decoder_tensors(config, replace(_NAMES, router="mlp.router") if transformers_5 else _NAMES, available)
