"""What Qwen3-Next and Qwen3.5 share: most layers have linear attention by the gated delta rule (arXiv 2412.06464), the others
full attention with an output gate. The checkpoint stores the weights of norms minus 1.
"""

from functools import lru_cache

from msgspec.structs import replace

from estream.errors import CheckpointError
from estream.models.config import AttentionConfig, DeltaConfig, LayerTensors, ModelConfig, ModelTensors, MoeConfig, TensorRef
from estream.models.decoder import (
    DECODER_NAMES,
    MTP_NOTE,
    AttentionParts,
    decoder_tensors,
    grouped_query_attention,
    layers_of_type,
    read_attention,
    read_moe,
)
from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import RopeDefaults

_NAMES = replace(DECODER_NAMES, shared="mlp.shared_expert.")


def read_hybrid_attention(hf: HfConfig) -> AttentionConfig:
    """Raises CheckpointError for any setting that the engine does not compute."""
    hf.require("attention_bias", False, False)
    attention = read_attention(hf, RopeDefaults(partial_rotary_factor=0.25), "head", kv_heads=2, head_dim=256)
    delta = DeltaConfig(
        key_heads=hf.integer("linear_num_key_heads", default=16),
        value_heads=hf.integer("linear_num_value_heads", default=32),
        key_dim=hf.integer("linear_key_head_dim", default=128),
        value_dim=hf.integer("linear_value_head_dim", default=128),
        conv_kernel_size=hf.integer("linear_conv_kernel_dim", default=4),
    )
    if delta.value_heads % delta.key_heads or delta.value_dim % 16 or delta.key_dim > 1024:
        raise CheckpointError(
            f"config.json: linear attention with {delta} is not supported: linear_num_value_heads must be a multiple of "
            "linear_num_key_heads, linear_value_head_dim of 16, linear_key_head_dim at most 1024"
        )
    types, interval = ("linear_attention", "full_attention"), hf.integer("full_attention_interval", default=4)
    linear_layers = layers_of_type(hf, types, lambda layer: types[(layer + 1) % interval == 0])
    return replace(attention, output_gate=True, delta=delta, delta_layers=linear_layers)


def read_hybrid_moe(hf: HfConfig, norm_topk_prob: bool) -> MoeConfig:
    """Read softmax routing and a shared expert with a sigmoid gate. Raises CheckpointError."""
    moe = read_moe(hf, "moe_intermediate_size", norm_topk_prob)
    return replace(moe, shared_intermediate_size=hf.integer("shared_expert_intermediate_size"), shared_gate=True)


def hybrid_tensors(config: ModelConfig, available: frozenset[str], projections: AttentionParts) -> ModelTensors:
    """Name the tensors; ``projections`` names ``qkv``, ``z``, ``b`` and ``a`` of a layer with linear attention."""

    def attention(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
        if layer in config.attention.delta_layers:
            return projections(config, layer) | _linear_attention(config, layer)
        return _gated_attention(config, layer)

    found = decoder_tensors(config, _NAMES, available, attention)
    multi_token = {name: MTP_NOTE for name in available if name.startswith("mtp.")}
    return replace(
        found,
        final_norm=replace(found.final_norm, added=1.0),
        layers=tuple(map(_with_one_added_to_norms, found.layers)),
        ignored={**found.ignored, **multi_token},
    )


def _with_one_added_to_norms(layer: LayerTensors) -> LayerTensors:
    norms = ("input_norm", "post_norm", "q_norm", "k_norm")
    return replace(layer, parts={n: replace(ref, added=1.0) if n in norms else ref for n, ref in layer.parts.items()})


def _gated_attention(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    """``q_proj`` has each head's query rows, then its gate rows."""
    attention = config.attention
    parts, head_dim = grouped_query_attention(config, layer), attention.head_dim
    q_proj = TensorRef(parts["q"].name, (2 * attention.query_width, config.hidden))
    for part, first in (("q", 0), ("q_gate", head_dim)):
        parts[part] = replace(q_proj, order=_halves(attention.heads, head_dim, first))
    return parts


@lru_cache(maxsize=8)
def _halves(heads: int, head_dim: int, first: int) -> tuple[int, ...]:
    """``head_dim`` of the rows of each head, from ``first`` on. All layers share the result."""
    return tuple(2 * head_dim * head + first + i for head in range(heads) for i in range(head_dim))


def _linear_attention(config: ModelConfig, layer: int) -> dict[str, TensorRef]:
    delta = config.attention.delta
    assert delta is not None
    attn = f"model.layers.{layer}.linear_attn."
    return {
        "conv": TensorRef(f"{attn}conv1d.weight", (delta.conv_dim, 1, delta.conv_kernel_size)),
        "log_rates": TensorRef(f"{attn}A_log", (delta.value_heads,)),
        "step_bias": TensorRef(f"{attn}dt_bias", (delta.value_heads,)),
        "gate_norm": TensorRef(f"{attn}norm.weight", (delta.value_dim,)),
        "o": TensorRef(f"{attn}out_proj.weight", (config.hidden, delta.value_width)),
    }
