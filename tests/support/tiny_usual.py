"""Shapes of tiny models with grouped-query attention and softmax routing."""

from tiny_family import Shapes, TinyFamily
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

OLMOE_SHAPES: Shapes = {
    "8 experts, grouped queries": {
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "60 experts, tied, normalised weights": {
        "hidden_size": 96,
        "intermediate_size": 40,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "tie_word_embeddings": True,
        "norm_topk_prob": True,
    },
    "64 experts, clipped, odd sizes": {
        "hidden_size": 72,
        "intermediate_size": 20,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "clip_qkv": 0.8,
        "rope_theta": 500000.0,
    },
}


MIXTRAL_SHAPES: Shapes = {
    "8 experts, grouped queries": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "4 experts, tied, wide heads": {
        "hidden_size": 80,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 3,
        "tie_word_embeddings": True,
    },
    "16 experts, one chosen": {
        "hidden_size": 128,
        "intermediate_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
    },
}

QWEN3_SHAPES: Shapes = {
    "128 experts, heads wider than hidden": {
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
    "12 experts, weights as they are": {
        "hidden_size": 96,
        "moe_intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 24,
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
    },
    "20 experts, tied": {
        "hidden_size": 64,
        "moe_intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "num_experts": 20,
        "num_experts_per_tok": 4,
        "tie_word_embeddings": True,
    },
}

QWEN2_SHAPES: Shapes = {
    "60 experts, shared one": {
        "hidden_size": 64,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "rope_theta": 1000000.0,
    },
    "every other layer dense, grouped queries": {
        "hidden_size": 96,
        "intermediate_size": 72,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 40,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "num_experts": 16,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "num_hidden_layers": 4,
    },
    "a dense layer, tied, no biases": {
        "hidden_size": 72,
        "intermediate_size": 200,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 56,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "num_experts": 12,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [1],
        "qkv_bias": False,
        "tie_word_embeddings": True,
    },
}

MIXTRAL_SHAPES |= {
    "a sliding window": MIXTRAL_SHAPES["8 experts, grouped queries"] | {"sliding_window": 70},
    "positions stretched as Llama 3's": MIXTRAL_SHAPES["8 experts, grouped queries"]
    | {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "positions stretched linearly": MIXTRAL_SHAPES["8 experts, grouped queries"]
    | {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
}
QWEN3_SHAPES |= {
    "a dense layer": QWEN3_SHAPES["12 experts, weights as they are"] | {"mlp_only_layers": [0], "intermediate_size": 80}
}

USUAL = {
    "olmoe": TinyFamily(OlmoeConfig, OlmoeForCausalLM, OLMOE_SHAPES),
    "mixtral": TinyFamily(MixtralConfig, MixtralForCausalLM, MIXTRAL_SHAPES),
    "qwen3_moe": TinyFamily(Qwen3MoeConfig, Qwen3MoeForCausalLM, QWEN3_SHAPES),
    "qwen2_moe": TinyFamily(Qwen2MoeConfig, Qwen2MoeForCausalLM, QWEN2_SHAPES),
}
