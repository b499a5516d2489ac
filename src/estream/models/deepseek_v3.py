"""DeepSeek-V3 and Moonlight (``DeepseekV3ForCausalLM``). Paper: arXiv 2412.19437.

As DeepSeek-V2, but the router's scores are sigmoids, and a learnt bias on the scores balances the experts' load.
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

NAME = "deepseek_v3"
ARCHITECTURES = ("DeepseekV3ForCausalLM",)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    hf.require("rope_interleave", True, True)
    hf.require("moe_layer_freq", 1, 1)
    moe = read_corrected_moe(hf, groups=(8, 4), scaling=2.5)
    config = read_decoder(NAME, hf, read_latent_attention(hf, 128), moe)
    return with_first_layers_dense(hf, config, default=3)


def read_corrected_moe(hf: HfConfig, groups: tuple[int, int], scaling: float) -> MoeConfig:
    """Read sigmoid routing with correction bias ("noaux_tc") and shared experts. ``groups`` and ``scaling`` are the defaults of
    the family's class. Raises CheckpointError.
    """
    hf.require("scoring_func", "sigmoid", "sigmoid")
    hf.require("topk_method", "noaux_tc", "noaux_tc")
    moe = replace(
        read_moe(hf, "moe_intermediate_size", hf.flag("norm_topk_prob", True)),
        scoring="sigmoid",
        routed_scaling_factor=hf.number("routed_scaling_factor", scaling),
        correction_bias=True,
    )
    shared = moe.intermediate_size * hf.count("n_shared_experts", 1)
    return with_expert_groups(hf, replace(moe, shared_intermediate_size=shared), groups)


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return decoder_tensors(config, DECODER_NAMES, available, latent_attention)
