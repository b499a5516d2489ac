"""gpt-oss (``GptOssForCausalLM``). Model card: arXiv 2508.10925.

Attention sinks, a sliding window in every other layer, biases on all projections, and experts with a clamped SwiGLU.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from estream.models.config import MOST_TOKENS, MlpTensors, ModelConfig, ModelTensors, TensorRef
from estream.models.decoder import (
    DECODER_NAMES,
    decoder_tensors,
    layers_of_type,
    read_attention,
    read_decoder,
    read_moe,
    with_sliding_window,
)
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import RopeDefaults

NAME = "gpt_oss"
ARCHITECTURES = ("GptOssForCausalLM",)

_NAMES = replace(DECODER_NAMES, router="mlp.router")
_ROPE = RopeDefaults(
    theta=150000.0,
    parameters={
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    biased = hf.flag("attention_bias", True)
    attention = read_attention(hf, _ROPE, kv_heads=8, head_dim=64)
    attention = replace(attention, input_bias=biased, output_bias=biased, sinks=True)
    # Softmax over the top-k logits equals softmax over all logits, renormalised over the top k.
    moe = replace(
        read_moe(hf, "intermediate_size", norm_topk_prob=True),
        router_bias=True,
        expert_bias=True,
        swiglu_alpha=hf.number("swiglu_alpha", 1.702),
        swiglu_limit=hf.positive("swiglu_limit", 7.0),
    )
    config = read_decoder(NAME, hf, attention, moe)
    types = ("sliding_attention", "full_attention")
    layers = layers_of_type(hf, types, lambda layer: types[layer % 2])
    if not layers:
        return config
    return with_sliding_window(config, hf.integer("sliding_window", default=128, most=MOST_TOKENS), layers)


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    found = decoder_tensors(config, _NAMES, available)
    layers = (
        replace(layer, experts=tuple(_expert(config, index, e) for e in range(config.moe.experts)))
        for index, layer in enumerate(found.layers)
    )
    return replace(found, layers=tuple(layers))


def _expert(config: ModelConfig, layer: int, expert: int) -> MlpTensors:
    """Matrices are stored [inputs, outputs]; the outputs of gate and up alternate."""
    prefix, experts, hidden, intermediate_size = (
        f"model.layers.{layer}.mlp.experts.",
        config.moe.experts,
        config.hidden,
        config.moe.intermediate_size,
    )
    gate = TensorRef(
        f"{prefix}gate_up_proj",
        (experts, hidden, 2 * intermediate_size),
        expert,
        0,
        intermediate_size,
        step=2,
        transposed=True,
    )
    gate_bias = TensorRef(f"{prefix}gate_up_proj_bias", (experts, 2 * intermediate_size), expert, 0, intermediate_size, step=2)
    return MlpTensors(
        gate=gate,
        up=replace(gate, first_row=1),
        down=TensorRef(f"{prefix}down_proj", (experts, intermediate_size, hidden), expert, transposed=True),
        gate_bias=gate_bias,
        up_bias=replace(gate_bias, first_row=1),
        down_bias=TensorRef(f"{prefix}down_proj_bias", (experts, hidden), expert),
    )
