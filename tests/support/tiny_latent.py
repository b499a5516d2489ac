"""Shapes of tiny models of the DeepSeek line: latent attention, groups of experts, sigmoid routing; and GLM's."""

from tiny_family import Shapes, TinyFamily
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
)

#: DeepSeek-V2-Lite's own values.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
}

_LATENT = {
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 24,
    "n_routed_experts": 16,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "rms_norm_eps": 1e-5,
}

V2_SHAPES: Shapes = {
    "as V2-Lite": _LATENT | {"q_lora_rank": None, "first_k_dense_replace": 1, "rope_parameters": YARN},
    "as V2, groups of experts": _LATENT
    | {
        "q_lora_rank": 40,
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "qk_nope_head_dim": 24,
        "v_head_dim": 12,
        "topk_method": "group_limited_greedy",
        "n_routed_experts": 40,
        "n_group": 8,
        "topk_group": 3,
        "num_experts_per_tok": 6,
        "routed_scaling_factor": 16.0,
        "first_k_dense_replace": 1,
    },
    "no dense layer, odd sizes": _LATENT
    | {
        "q_lora_rank": None,
        "hidden_size": 72,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "kv_lora_rank": 20,
        "qk_rope_head_dim": 12,
        "v_head_dim": 20,
        "n_shared_experts": 1,
        "tie_word_embeddings": True,
    },
}

V3_SHAPES: Shapes = {
    "as V3, groups of experts": _LATENT
    | {
        "q_lora_rank": 24,
        "n_routed_experts": 32,
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 6,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "as Moonlight, one group": _LATENT
    | {
        "q_lora_rank": None,
        "hidden_size": 96,
        "qk_nope_head_dim": 24,
        "v_head_dim": 24,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.446,
        "rope_theta": 50000.0,
    },
    "weights as they are": _LATENT
    | {"q_lora_rank": 20, "n_group": 4, "topk_group": 2, "norm_topk_prob": False, "first_k_dense_replace": 2},
}

_GLM = {
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "moe_intermediate_size": 24,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
}

GLM_SHAPES: Shapes = {
    "biases, half of a head rotated": _GLM | {"attention_bias": True},
    "normalised queries and keys": _GLM | {"use_qk_norm": True, "hidden_size": 96, "routed_scaling_factor": 2.5},
    "groups, a quarter rotated": _GLM
    | {
        "n_group": 4,
        "topk_group": 2,
        "n_routed_experts": 24,
        "first_k_dense_replace": 2,
        "head_dim": 24,
        "norm_topk_prob": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    },
}

LATENT = {
    "deepseek_v2": TinyFamily(DeepseekV2Config, DeepseekV2ForCausalLM, V2_SHAPES),
    "deepseek_v3": TinyFamily(DeepseekV3Config, DeepseekV3ForCausalLM, V3_SHAPES),
    "glm4_moe": TinyFamily(Glm4MoeConfig, Glm4MoeForCausalLM, GLM_SHAPES),
}
