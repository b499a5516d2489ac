"""Settings of GGUF architectures in the words of Hugging Face's ``config.json``. What llama.cpp fixes in its code, because
all files of an architecture share it, is written out here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from estream.checkpoint.gguf.keys import Keys
from estream.checkpoint.gguf.reader import GgufTensor

Config = dict[str, Any]

_SOFTMAX, _SIGMOID, _SOFTMAX_OF_CHOSEN = 1, 2, 3


@dataclass(frozen=True)
class Facts:
    """What is known from the tensors rather than from the keys; ``read`` gives the values of a small one."""

    stored: Mapping[str, GgufTensor]
    read: Callable[[GgufTensor], list[float]]

    def has(self, name: str) -> bool:
        return name in self.stored

    @property
    def largest(self) -> int:
        """The largest dimension of a tensor."""
        return max(max(tensor.shape) for tensor in self.stored.values())


def decoder(keys: Keys, facts: Facts, architecture: str) -> Config:
    """What every decoder has."""
    embedding = facts.stored.get("token_embd.weight")
    if embedding is None:
        keys.refuse("embedding_length", "cannot be used: tensor 'token_embd.weight' is missing")
    keys.require("attention.causal", True)
    heads = keys.integer("attention.head_count", most=facts.largest)
    return {
        "architectures": [architecture],
        "vocab_size": embedding.rows,
        "hidden_size": keys.integer("embedding_length"),
        "num_hidden_layers": keys.integer("block_count", most=len(facts.stored)),
        "max_position_embeddings": keys.integer("context_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer("attention.head_count_kv", heads, most=heads),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "hidden_act": "silu",
        "tie_word_embeddings": not facts.has("output.weight"),
    } | _rope_scaling(keys)


def _rope_scaling(keys: Keys) -> Config:
    kind = keys.text("rope.scaling.type", "none")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        keys.refuse("rope.scaling.type", f"is {kind!r}, supported are 'none', 'linear' and 'yarn'")
    scaling: Config = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = keys.integer("rope.scaling.original_context_length")
        scaling["beta_fast"] = keys.number("rope.scaling.yarn_beta_fast", 32.0)
        scaling["beta_slow"] = keys.number("rope.scaling.yarn_beta_slow", 1.0)
        keys.require("rope.scaling.yarn_ext_factor", 1.0)
        if keys.has("rope.scaling.yarn_attn_factor"):
            scaling["attention_factor"] = keys.number("rope.scaling.yarn_attn_factor")
    return {"rope_scaling": scaling}


def heads(keys: Keys, config: Config, partial: bool = False) -> Config:
    """The size of a head, and the part of it that is rotated."""
    size = keys.integer("attention.key_length", config["hidden_size"] // config["num_attention_heads"])
    keys.require("attention.value_length", size)
    rotated = keys.integer("rope.dimension_count", size)
    if partial:
        return {"head_dim": size, "partial_rotary_factor": rotated / size}
    if rotated != size:
        keys.refuse("rope.dimension_count", f"is {rotated}, but heads of {size} must be rotated whole in this architecture")
    return {"head_dim": size}


def experts(keys: Keys, facts: Facts, name: str) -> Config:
    count = keys.integer("expert_count", 0, least=0, most=facts.largest)
    if not count:
        keys.refuse("expert_count", "is missing or 0: this model has no experts, so estream cannot run it")
    return {name: count, "num_experts_per_tok": keys.integer("expert_used_count")}


def olmoe(keys: Keys, facts: Facts) -> Config:
    config = decoder(keys, facts, "OlmoeForCausalLM")
    width = keys.integer("feed_forward_length")
    clip = {"clip_qkv": keys.number("attention.clamp_kqv")} if keys.has("attention.clamp_kqv") else {}
    return (
        config
        | heads(keys, config)
        | experts(keys, facts, "num_experts")
        | {
            "intermediate_size": keys.integer("expert_feed_forward_length", width),
            "norm_topk_prob": keys.flag("expert_weights_norm", False),
        }
        | clip
    )


def mixtral(keys: Keys, facts: Facts) -> Config:
    config = decoder(keys, facts, "MixtralForCausalLM")
    window = {"sliding_window": keys.integer("attention.sliding_window")} if keys.has("attention.sliding_window") else {}
    return (
        config
        | heads(keys, config)
        | experts(keys, facts, "num_local_experts")
        | {
            "intermediate_size": keys.integer("feed_forward_length"),
        }
        | window
    )


def qwen3_moe(keys: Keys, facts: Facts) -> Config:
    config = decoder(keys, facts, "Qwen3MoeForCausalLM")
    keys.integer("feed_forward_length", 0, least=0)  # of dense layers, of which there are none
    return (
        config
        | heads(keys, config)
        | experts(keys, facts, "num_experts")
        | {
            "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
            "norm_topk_prob": keys.flag("expert_weights_norm", True),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    )


def qwen2_moe(keys: Keys, facts: Facts) -> Config:
    config = decoder(keys, facts, "Qwen2MoeForCausalLM")
    dense = keys.integer("feed_forward_length")
    shared = facts.stored.get("blk.0.ffn_gate_shexp.weight")
    return (
        config
        | heads(keys, config)
        | experts(keys, facts, "num_experts")
        | {
            "intermediate_size": dense,
            "moe_intermediate_size": keys.integer("expert_feed_forward_length", dense // keys.integer("expert_used_count")),
            "shared_expert_intermediate_size": keys.integer(
                "expert_shared_feed_forward_length", shared.rows if shared else dense
            ),
            "norm_topk_prob": keys.flag("expert_weights_norm", False),
            "qkv_bias": facts.has("blk.0.attn_q.bias"),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    )


def deepseek(keys: Keys, facts: Facts) -> Config:
    """DeepSeek-V2 and V3, told apart by how experts are scored."""
    sigmoid = keys.integer("expert_gating_func", _SOFTMAX, least=0) == _SIGMOID
    config = decoder(keys, facts, "DeepseekV3ForCausalLM" if sigmoid else "DeepseekV2ForCausalLM")
    rotated = keys.integer("rope.dimension_count")
    # Older files give the lengths of heads directly, newer ones those of the compressed form and these beside them.
    most = facts.largest
    key, value = (keys.integer(f"attention.{part}_length", most=most) for part in ("key", "value"))
    key = keys.integer("attention.key_length_mla", key, most=most)
    value = keys.integer("attention.value_length_mla", value, most=most)
    if key <= rotated:
        keys.refuse("attention.key_length", f"is {key}, expected more than the {rotated} inputs that are rotated")
    groups = keys.integer("expert_group_count", 1)
    grouped = "group_limited_greedy" if groups > 1 else "greedy"
    result = config | experts(keys, facts, "n_routed_experts") | {
        "num_key_value_heads": config["num_attention_heads"],
        "q_lora_rank": keys.integer("attention.q_lora_rank") if keys.has("attention.q_lora_rank") else None,
        "kv_lora_rank": keys.integer("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
        "head_dim": rotated,
        "intermediate_size": keys.integer("feed_forward_length"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "n_shared_experts": keys.integer("expert_shared_count", 0, least=0) or None,
        "first_k_dense_replace": keys.integer("leading_dense_block_count", 0, least=0),
        "moe_layer_freq": 1,
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        "scoring_func": "sigmoid" if sigmoid else "softmax",
        "topk_method": "noaux_tc" if sigmoid else grouped,
        "n_group": groups,
        "topk_group": keys.integer("expert_group_used_count", 1),
        "rope_interleave": True,
        "attention_bias": False,
    }  # fmt: skip
    log_multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    if "rope_scaling" in config and log_multiplier:
        # Both are equal in all models of these families; files store a tenth of the second.
        scale = float(f"{log_multiplier / 0.1:.6g}")
        result["rope_scaling"] |= {"mscale": scale, "mscale_all_dim": scale}
    return result


def glm4_moe(keys: Keys, facts: Facts) -> Config:
    config = decoder(keys, facts, "Glm4MoeForCausalLM")
    keys.require("expert_gating_func", _SIGMOID)
    following = keys.integer("nextn_predict_layers", 0, least=0)
    return config | heads(keys, config, partial=True) | experts(keys, facts, "n_routed_experts") | {
        "num_hidden_layers": config["num_hidden_layers"] - following,
        "intermediate_size": keys.integer("feed_forward_length"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "n_shared_experts": keys.integer("expert_shared_count"),
        "first_k_dense_replace": keys.integer("leading_dense_block_count", 0, least=0),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "norm_topk_prob": keys.flag("expert_weights_norm", True),
        "n_group": keys.integer("expert_group_count", 1),
        "topk_group": keys.integer("expert_group_used_count", 1),
        "use_qk_norm": facts.has("blk.0.attn_q_norm.weight"),
        "attention_bias": facts.has("blk.0.attn_q.bias"),
    }  # fmt: skip


def gpt_oss(keys: Keys, facts: Facts) -> Config:
    config = decoder(keys, facts, "GptOssForCausalLM")
    keys.require("expert_gating_func", _SOFTMAX_OF_CHOSEN)
    keys.integer("feed_forward_length", 0, least=0)
    layers = config["num_hidden_layers"]
    if "rope_scaling" in config:
        config["rope_scaling"] |= {"truncate": False}
    return (
        config
        | heads(keys, config)
        | experts(keys, facts, "num_local_experts")
        | {
            "intermediate_size": keys.integer("expert_feed_forward_length"),
            "sliding_window": keys.integer("attention.sliding_window"),
            "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
            "attention_bias": True,
            "swiglu_limit": 7.0,
        }
    )


def granite_moe(keys: Keys, facts: Facts) -> Config:
    shared = facts.has("blk.0.ffn_gate_shexp.weight")
    config = decoder(keys, facts, "GraniteMoeSharedForCausalLM" if shared else "GraniteMoeForCausalLM")
    size = {"shared_intermediate_size": keys.integer("expert_shared_feed_forward_length")} if shared else {}
    head = heads(keys, config)["head_dim"]
    return config | experts(keys, facts, "num_local_experts") | {
        "intermediate_size": keys.integer("feed_forward_length"),
        "embedding_multiplier": keys.number("embedding_scale", 1.0),
        "residual_multiplier": keys.number("residual_scale", 1.0),
        "attention_multiplier": keys.number("attention.scale", 1.0 / math.sqrt(head)),
        "logits_scaling": keys.number("logit_scale"),
        "attention_bias": False,
    } | size  # fmt: skip


def phimoe(keys: Keys, facts: Facts) -> Config:
    config = decoder(keys, facts, "PhimoeForCausalLM")
    result = config | heads(keys, config) | experts(keys, facts, "num_local_experts") | {
        "intermediate_size": keys.integer("feed_forward_length"),
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "lm_head_bias": facts.has("output.bias"),
        # ggml writes 0 for a model without a window.
        "sliding_window": keys.integer("attention.sliding_window", 0, least=0) or None,
    }  # fmt: skip
    original = keys.integer("rope.scaling.original_context_length", config["max_position_embeddings"])
    attention = keys.number("rope.scaling.attn_factor", 1.0)
    long, short = (facts.stored.get(f"rope_factors_{name}.weight") for name in ("long", "short"))
    if long is not None and short is not None:
        result["rope_scaling"] = {
            "rope_type": "longrope",
            "long_factor": facts.read(long),
            "short_factor": facts.read(short),
            "long_mscale": attention,
            "short_mscale": attention,
            "original_max_position_embeddings": original,
        }
    return result
