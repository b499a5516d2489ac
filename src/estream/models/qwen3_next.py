"""Qwen3-Next (``Qwen3NextForCausalLM``): three of four layers have linear attention by the gated delta rule, the others gate
the output of theirs; norms store their weight less one. Paper of the rule: arXiv 2412.06464.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from estream.errors import CheckpointError
from estream.models.config import AttentionConfig, DeltaConfig, LayerTensors, ModelConfig, ModelTensors, TensorRef
from estream.models.decoder import (
    USUAL_NAMES,
    decoder_tensors,
    grouped_attention,
    read_attention,
    read_decoder,
    read_moe,
    with_dense_layers,
)
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import read_rope
from estream.models.qwen2_moe import dense_layers

NAME = "qwen3_next"
ARCHITECTURES = ("Qwen3NextForCausalLM",)

_NAMES = replace(USUAL_NAMES, shared="mlp.shared_expert.")


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf = HfConfig(values)
    hf.require("attention_bias", False, False)
    moe = read_moe(hf, "moe_intermediate_size", hf.flag("norm_topk_prob", True))
    moe = replace(moe, shared_width=hf.integer("shared_expert_intermediate_size"), shared_gate=True)
    return with_dense_layers(hf, read_decoder(NAME, hf, _read_attention(hf), moe), dense_layers(hf))


def _read_attention(hf: HfConfig) -> AttentionConfig:
    attention = read_attention(hf, hf.integer("hidden_size"), "head")
    delta = DeltaConfig(
        key_heads=hf.integer("linear_num_key_heads", default=16),
        value_heads=hf.integer("linear_num_value_heads", default=32),
        key_dim=hf.integer("linear_key_head_dim", default=128),
        value_dim=hf.integer("linear_value_head_dim", default=128),
        taps=hf.integer("linear_conv_kernel_dim", default=4),
    )
    if delta.value_heads % delta.key_heads or delta.value_dim % 16 or delta.key_dim > 1024:
        raise CheckpointError(
            f"config.json: linear attention with {delta} is not supported: linear_num_value_heads must be a multiple of "
            "linear_num_key_heads, linear_value_head_dim of 16, linear_key_head_dim at most 1024"
        )
    rope = read_rope(hf, attention.head_dim, partial=0.25)
    return replace(attention, rope=rope, output_gate=True, delta=delta, delta_layers=_linear_layers(hf))


def _linear_layers(hf: HfConfig) -> tuple[int, ...]:
    layers, interval = hf.integer("num_hidden_layers"), hf.integer("full_attention_interval", default=4)
    names = ("linear_attention", "full_attention")
    kinds = hf.values.get("layer_types") or [names[0 if (i + 1) % interval else 1] for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in names for kind in kinds):
        raise CheckpointError(f"config.json: 'layer_types' must name {' or '.join(names)} for each layer, found {kinds!r}")
    return tuple(i for i, kind in enumerate(kinds) if kind == names[0])


def tensors(config: ModelConfig, available: frozenset[str]) -> ModelTensors:
    found = decoder_tensors(config, _NAMES, available, _attention)
    return replace(
        found,
        final_norm=replace(found.final_norm, added=1.0),
        layers=tuple(map(_with_whole_norms, found.layers)),
        # A module for further tokens.
        ignored=found.ignored | {name for name in available if name.startswith("mtp.")},
    )


def _with_whole_norms(layer: LayerTensors) -> LayerTensors:
    norms = ("input_norm", "post_norm", "q_norm", "k_norm")
    return replace(layer, parts={n: replace(ref, added=1.0) if n in norms else ref for n, ref in layer.parts.items()})


def _attention(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    linear = layer in config.attention.delta_layers
    return _linear_attention(config, layer) if linear else _full_attention(config, layer)


def _full_attention(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    """Each head's rows of ``q_proj`` are its query and then its gate."""
    attention = config.attention
    parts, size = grouped_attention(config, layer), attention.head_dim
    both = TensorRef(parts["q"].name, (2 * attention.query_width, config.hidden))
    for part, first in (("q", 0), ("q_gate", size)):
        order = tuple(2 * size * h + first + i for h in range(attention.heads) for i in range(size))
        parts[part] = replace(both, order=order)
    return parts


def _linear_attention(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    """Rows of ``in_proj_qkvz`` and ``in_proj_ba`` are grouped by key head."""
    delta, hidden = config.attention.delta, config.hidden
    assert delta is not None
    attn, group = f"model.layers.{layer}.linear_attn.", delta.value_heads // delta.key_heads
    widths = (delta.key_dim, delta.key_dim, group * delta.value_dim, group * delta.value_dim)
    starts = [sum(widths[:n]) for n in range(4)]

    def rows(starts: list[int], widths: tuple[int, ...], which: int, step: int) -> tuple[int, ...]:
        return tuple(step * h + starts[which] + i for h in range(delta.key_heads) for i in range(widths[which]))

    mixed = TensorRef(f"{attn}in_proj_qkvz.weight", (sum(widths) * delta.key_heads, hidden))
    gates = TensorRef(f"{attn}in_proj_ba.weight", (2 * delta.value_heads, hidden))
    qkvz = [rows(starts, widths, n, sum(widths)) for n in range(4)]
    ba = [rows([0, group], (group, group), n, 2 * group) for n in range(2)]
    return {
        "qkv": replace(mixed, order=qkvz[0] + qkvz[1] + qkvz[2]),
        "z": replace(mixed, order=qkvz[3]),
        "ba": replace(gates, order=ba[0] + ba[1]),
        "conv": TensorRef(f"{attn}conv1d.weight", (delta.mixed_width, 1, delta.taps)),
        "log_rates": TensorRef(f"{attn}A_log", (delta.value_heads,)),
        "step_bias": TensorRef(f"{attn}dt_bias", (delta.value_heads,)),
        "gate_norm": TensorRef(f"{attn}norm.weight", (delta.value_dim,)),
        "o": TensorRef(f"{attn}out_proj.weight", (hidden, delta.value_width)),
    }
