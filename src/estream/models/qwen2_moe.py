"""Qwen1.5-MoE and Qwen2-MoE (``Qwen2MoeForCausalLM``). Paper: arXiv 2407.10671.

A shared expert with a sigmoid gate serves every token beside the routed experts. Queries, keys and values have biases.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from estream.models.config import ModelConfig, ModelTensors
from estream.models.decoder import (
    DECODER_NAMES,
    decoder_tensors,
    read_attention,
    read_decoder,
    read_moe,
    with_dense_layers,
)
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import RopeDefaults

NAME = "qwen2_moe"
ARCHITECTURES = ("Qwen2MoeForCausalLM",)

_NAMES = replace(DECODER_NAMES, shared="mlp.shared_expert.")


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    hf.require("use_sliding_window", False, False)
    attention = replace(read_attention(hf, RopeDefaults(), kv_heads=16), input_bias=hf.flag("qkv_bias", True))
    moe = read_moe(hf, "moe_intermediate_size", hf.flag("norm_topk_prob", False))
    moe = replace(moe, shared_intermediate_size=hf.integer("shared_expert_intermediate_size"), shared_gate=True)
    return with_dense_layers(hf, read_decoder(NAME, hf, attention, moe), dense_layers(hf))


def dense_layers(hf: HfConfig) -> set[int]:
    """Return the layers in ``mlp_only_layers``, and those whose number, from 1, ``decoder_sparse_step`` does not divide.

    Raises:
        CheckpointError: ``mlp_only_layers`` is not a list of layers of the model.

    """
    sparse_step, mlp_only = hf.integer("decoder_sparse_step", default=1), hf.layer_list("mlp_only_layers")
    return {n for n in range(hf.layers()) if n in mlp_only or (n + 1) % sparse_step}


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    return decoder_tensors(config, _NAMES, available)
