"""gpt-oss (``GptOssForCausalLM``): attention sinks, a sliding window in every other layer, biases everywhere, and experts
with a clamped gate. Model card: arXiv 2508.10925.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from estream.models.config import MlpTensors, ModelConfig, ModelTensors, TensorRef
from estream.models.decoder import (
    USUAL_NAMES,
    decoder_tensors,
    read_attention,
    read_decoder,
    read_layer_kinds,
    read_moe,
    with_window,
)
from estream.models.huggingface import HfConfig

NAME = "gpt_oss"
ARCHITECTURES = ("GptOssForCausalLM",)

_NAMES = replace(USUAL_NAMES, router="mlp.router")


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    biased = hf.flag("attention_bias", True)
    attention = replace(read_attention(hf, hf.integer("hidden_size")), input_bias=biased, output_bias=biased, sinks=True)
    # The softmax over the chosen logits is that over all, normalised.
    moe = replace(
        read_moe(hf, "intermediate_size", normalise=True),
        router_bias=True,
        expert_bias=True,
        swiglu_alpha=hf.number("swiglu_alpha", 1.702),
        swiglu_limit=hf.positive("swiglu_limit", 7.0),
    )
    config = read_decoder(NAME, hf, attention, moe)
    kinds, window = ("sliding_attention", "full_attention"), hf.count("sliding_window")
    layers = read_layer_kinds(hf, kinds, lambda layer: kinds[layer % 2])
    return with_window(config, window, layers if window else ())


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    found = decoder_tensors(config, _NAMES, available)
    layers = (
        replace(layer, experts=tuple(_expert(config, index, e) for e in range(config.moe.experts)))
        for index, layer in enumerate(found.layers)
    )
    return replace(found, layers=tuple(layers))


def _expert(config: ModelConfig, layer: int, expert: int) -> MlpTensors:
    """Matrices are stored [inputs, outputs], with the outputs of gate and up side by side."""
    prefix, moe, hidden = f"model.layers.{layer}.mlp.experts.", config.moe, config.hidden
    both = TensorRef(
        f"{prefix}gate_up_proj",
        (moe.experts, hidden, 2 * moe.intermediate_size),
        expert,
        0,
        moe.intermediate_size,
        step=2,
        transposed=True,
    )
    biases = TensorRef(
        f"{prefix}gate_up_proj_bias", (moe.experts, 2 * moe.intermediate_size), expert, 0, moe.intermediate_size, step=2
    )
    return MlpTensors(
        gate=both,
        up=replace(both, first_row=1),
        down=TensorRef(f"{prefix}down_proj", (moe.experts, moe.intermediate_size, hidden), expert, transposed=True),
        gate_bias=biases,
        up_bias=replace(biases, first_row=1),
        down_bias=TensorRef(f"{prefix}down_proj_bias", (moe.experts, hidden), expert),
    )
