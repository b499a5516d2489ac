"""DeepSeek-V2 and V2-Lite (``DeepseekV2ForCausalLM``). Paper: arXiv 2405.04434.

Latent attention; the first layers are dense; shared experts have no gate; routing may be limited to the best groups.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from estream.models.config import ModelConfig, ModelTensors, MoeConfig
from estream.models.decoder import (
    DECODER_NAMES,
    decoder_tensors,
    read_decoder,
    read_moe,
    with_expert_groups,
    with_first_layers_dense,
)
from estream.models.huggingface import HfConfig
from estream.models.latent import latent_attention, read_latent_attention

NAME = "deepseek_v2"
ARCHITECTURES = ("DeepseekV2ForCausalLM",)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    hf.require("mlp_bias", False, False)
    hf.require("moe_layer_freq", 1, 1)
    config = read_decoder(NAME, hf, read_latent_attention(hf, None), _read_moe(hf))
    return with_first_layers_dense(hf, config, default=0)


def _read_moe(hf: HfConfig) -> MoeConfig:
    hf.require("scoring_func", "softmax", "softmax")
    method = hf.one_of("topk_method", ("greedy", "group_limited_greedy"), "greedy")
    moe = read_moe(hf, "moe_intermediate_size", hf.flag("norm_topk_prob", False))
    # The models' own code scales only weights that it does not normalise. transformers always scales. No published model
    # has settings for which the two differ.
    moe = replace(
        moe,
        norm_topk_prob=moe.norm_topk_prob and moe.top_k > 1,
        routed_scaling_factor=1.0 if moe.norm_topk_prob and moe.top_k > 1 else hf.number("routed_scaling_factor", 1.0),
        shared_intermediate_size=moe.intermediate_size * hf.count("n_shared_experts", 2),
    )
    return with_expert_groups(hf, moe) if method == "group_limited_greedy" else moe


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return decoder_tensors(config, DECODER_NAMES, available, latent_attention)
