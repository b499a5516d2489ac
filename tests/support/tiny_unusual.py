"""Shapes of tiny models with biases, sinks, factors or layer norms."""

from tiny_family import Shapes, TinyFamily
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    GraniteMoeSharedConfig,
    GraniteMoeSharedForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
)

_OSS = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 16,
    "num_experts_per_tok": 4,
    "sliding_window": 16,
    # Small weights would never reach the model's own limit of 7.
    "swiglu_limit": 0.7,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
}
OSS_SHAPES: Shapes = {
    "16 experts, a window of 16": _OSS,
    "odd sizes, a window over blocks": _OSS
    | {"hidden_size": 72, "intermediate_size": 40, "head_dim": 24, "num_local_experts": 5, "sliding_window": 70},
    "every layer sees all, limit of the model": _OSS
    | {
        "layer_types": ["full_attention"] * 3,
        "swiglu_limit": 7.0,
        "num_key_value_heads": 8,
        "hidden_size": 96,
        "num_experts_per_tok": 1,
    },
}

_GRANITE = {
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.11,
    "residual_multiplier": 0.22,
    "logits_scaling": 6.0,
}
GRANITE_SHAPES: Shapes = {
    "factors": _GRANITE,
    "40 experts, tied, no factors": _GRANITE
    | {
        "num_local_experts": 40,
        "num_experts_per_tok": 8,
        "tie_word_embeddings": True,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
    "biases, odd sizes": _GRANITE | {"hidden_size": 72, "intermediate_size": 20, "attention_bias": True},
}
GRANITE_SHARED_SHAPES: Shapes = {
    "a shared MLP": _GRANITE | {"shared_intermediate_size": 48},
    "a wide shared MLP, tied": _GRANITE
    | {"shared_intermediate_size": 200, "tie_word_embeddings": True, "num_local_experts": 20, "num_experts_per_tok": 4},
    "no shared MLP": _GRANITE | {"shared_intermediate_size": 0},
}

_PHI = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 16,
    "attention_bias": True,
    "lm_head_bias": True,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.05 * i for i in range(8)],
    "long_factor": [1.0 + 3.0 * i for i in range(8)],
    "short_mscale": 1.243163121016122,
    "long_mscale": 1.4,
    "original_max_position_embeddings": 256,
}
PHI_SHAPES: Shapes = {
    "as Phi-3.5, LongRoPE": _PHI | {"rope_parameters": LONG_ROPE},
    "logits of nearly one size, a window": _PHI | {"router_jitter_noise": 0.4, "sliding_window": 40, "hidden_size": 96},
    "no biases, 4 experts": _PHI | {"attention_bias": False, "lm_head_bias": False, "num_local_experts": 4},
}

UNUSUAL = {
    "gpt_oss": TinyFamily(GptOssConfig, GptOssForCausalLM, OSS_SHAPES),
    "granite_moe": TinyFamily(GraniteMoeConfig, GraniteMoeForCausalLM, GRANITE_SHAPES),
    "granite_moe_shared": TinyFamily(GraniteMoeSharedConfig, GraniteMoeSharedForCausalLM, GRANITE_SHARED_SHAPES),
    "phimoe": TinyFamily(PhimoeConfig, PhimoeForCausalLM, PHI_SHAPES),
}
