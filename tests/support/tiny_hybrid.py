"""Shapes of tiny models with linear attention in some layers and gated full attention in the others."""

from tiny_family import Shapes, TinyFamily
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3NextConfig, Qwen3NextForCausalLM

_HYBRID = {
    "hidden_size": 64,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 16,
    "num_experts_per_tok": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "num_hidden_layers": 4,
}
NEXT_SHAPES: Shapes = {
    "three of four layers linear": _HYBRID,
    "the last layer linear, odd sizes": _HYBRID
    | {
        "hidden_size": 72,
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 3,
        "norm_topk_prob": False,
    },
    "wide states, a dense layer, tied": _HYBRID
    | {
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 40,
        "linear_value_head_dim": 80,
        "mlp_only_layers": [1],
        "intermediate_size": 96,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
}

#: As published: what pictures need is there, too.
_POSITIONS = {"rope_type": "default", "rope_theta": 1e7, "mrope_interleaved": True}
_QWEN3_5 = _HYBRID | {"rope_parameters": _POSITIONS | {"partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]}}
QWEN3_5_SHAPES: Shapes = {
    "as Qwen3.5, one layer in four sees all": _QWEN3_5,
    "every other layer sees all, half of a head rotated, odd sizes": _QWEN3_5
    | {
        "hidden_size": 72,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "head_dim": 24,
        "num_attention_heads": 6,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 3,
        "shared_expert_intermediate_size": 24,
        "rope_parameters": _POSITIONS | {"partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2]},
    },
    "60 experts, three values a key, tied": _QWEN3_5
    | {
        "hidden_size": 96,
        "num_experts": 60,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 1,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 20,
        "linear_value_head_dim": 48,
        "tie_word_embeddings": True,
    },
}

HYBRID = {
    "qwen3_next": TinyFamily(Qwen3NextConfig, Qwen3NextForCausalLM, NEXT_SHAPES, unsteady=True),
    "qwen3_5_moe": TinyFamily(Qwen3_5MoeTextConfig, Qwen3_5MoeForCausalLM, QWEN3_5_SHAPES, unsteady=True),
}
