"""Granite 3 MoE (``GraniteMoeForCausalLM``, ``GraniteMoeSharedForCausalLM``).

Constant factors multiply embeddings, attention scores, residual additions and logits. A layer may have a shared MLP.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from estream.models.config import LayerTensors, MlpTensors, ModelConfig, ModelTensors, TensorRef
from estream.models.decoder import MoeNames, decoder_tensors, fused_mlp, read_attention, read_decoder, read_moe
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import RopeDefaults

NAME = "granite_moe"
ARCHITECTURES = ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")

_NAMES = MoeNames(
    router="block_sparse_moe.router.layer",
    gate="block_sparse_moe.input_linear",
    up="block_sparse_moe.input_linear",
    down="block_sparse_moe.output_linear",
    fused="block_sparse_moe.experts.",
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    biased = hf.flag("attention_bias", False)
    attention = replace(
        read_attention(hf, RopeDefaults()),
        scale=hf.positive("attention_multiplier", 1.0),
        input_bias=biased,
        output_bias=biased,
    )
    moe = replace(
        # Softmax over the top-k logits equals softmax over all logits, renormalised over the top k.
        read_moe(hf, "intermediate_size", norm_topk_prob=True),
        shared_intermediate_size=hf.count("shared_intermediate_size", 0),
    )
    return replace(
        read_decoder(NAME, hf, attention, moe),
        embedding_factor=hf.number("embedding_multiplier", 1.0),
        residual_factor=hf.number("residual_multiplier", 1.0),
        logits_factor=1.0 / hf.positive("logits_scaling", 1.0),
    )


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    transformers_5 = "model.layers.0.block_sparse_moe.router.weight" in available
    names = replace(_NAMES, router="block_sparse_moe.router") if transformers_5 else _NAMES
    found = decoder_tensors(config, names, available)
    return replace(found, layers=tuple(_layer(config, i, layer, available) for i, layer in enumerate(found.layers)))


def _layer(config: ModelConfig, index: int, layer: LayerTensors, available: frozenset[str]) -> LayerTensors:
    """The published files name the fused experts ``input_linear`` and ``output_linear``. The shared MLP's gate and up are
    always fused.
    """
    prefix, moe, hidden = f"model.layers.{index}.", config.moe, config.hidden
    if f"{prefix}{_NAMES.fused}gate_up_proj" not in available:
        gate_up, down = (f"{prefix}{name}.weight" for name in (_NAMES.gate, _NAMES.down))
        layer = replace(layer, experts=tuple(fused_mlp(gate_up, down, config, e) for e in range(moe.experts)))
    if intermediate_size := moe.shared_intermediate_size:
        gate = TensorRef(f"{prefix}shared_mlp.input_linear.weight", (2 * intermediate_size, hidden), all_rows=intermediate_size)
        down_proj = TensorRef(f"{prefix}shared_mlp.output_linear.weight", (hidden, intermediate_size))
        layer = replace(layer, shared=MlpTensors(gate, replace(gate, first_row=intermediate_size), down_proj))
    return layer
