"""Translates the settings of GGUF architectures to Hugging Face's ``config.json``.

Some settings are not in the files, because llama.cpp fixes them in the code of an architecture. They are constants here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from estream.checkpoint.gguf.keys import Keys
from estream.checkpoint.gguf.reader import GgufTensor
from estream.models.config import LARGEST_HEAD

Config = dict[str, Any]

#: Values of ``expert_gating_func``; the last is a softmax over the top-k logits alone.
_SOFTMAX, _SIGMOID, _SOFTMAX_TOP_K = 1, 2, 3


@dataclass(frozen=True)
class TensorFacts:
    """Settings that only the tensors show; ``read`` returns the values of a small tensor."""

    stored: Mapping[str, GgufTensor]
    read: Callable[[GgufTensor], list[float]]

    def has(self, name: str) -> bool:
        return name in self.stored

    @property
    def largest_dimension(self) -> int:
        """The largest dimension of any tensor: a bound for settings that count something."""
        return max(max(tensor.shape) for tensor in self.stored.values())


def decoder(keys: Keys, facts: TensorFacts, architecture: str) -> Config:
    """Translate the settings that all architectures share."""
    embedding = facts.stored.get("token_embd.weight")
    if embedding is None:
        keys.refuse("embedding_length", "cannot be used: tensor 'token_embd.weight' is missing")
    keys.require("attention.causal", True)
    heads = keys.integer("attention.head_count", most=facts.largest_dimension)
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
    rope_type = keys.text("rope.scaling.type", "none")
    if rope_type == "none":
        return {}
    if rope_type not in ("linear", "yarn"):
        keys.refuse("rope.scaling.type", f"is {rope_type!r}, supported are 'none', 'linear' and 'yarn'")
    scaling: Config = {"rope_type": rope_type, "factor": keys.number("rope.scaling.factor")}
    if rope_type == "yarn":
        scaling["original_max_position_embeddings"] = keys.integer("rope.scaling.original_context_length")
        scaling["beta_fast"] = keys.number("rope.scaling.yarn_beta_fast", 32.0)
        scaling["beta_slow"] = keys.number("rope.scaling.yarn_beta_slow", 1.0)
        keys.require("rope.scaling.yarn_ext_factor", 1.0)
        if keys.has("rope.scaling.yarn_attn_factor"):
            scaling["attention_factor"] = keys.number("rope.scaling.yarn_attn_factor")
    return {"rope_scaling": scaling}


def head_sizes(keys: Keys, config: Config, partial_rotary: bool = False) -> Config:
    """Translate the size of a head and, with ``partial_rotary``, the share of it that is rotated."""
    head_dim = keys.integer("attention.key_length", config["hidden_size"] // config["num_attention_heads"], most=LARGEST_HEAD)
    if not 1 <= head_dim <= LARGEST_HEAD:
        keys.refuse("attention.head_count", f"leaves heads of {head_dim} values, expected 1 to {LARGEST_HEAD}")
    keys.require("attention.value_length", head_dim)
    rotary_dim = keys.integer("rope.dimension_count", head_dim)
    if partial_rotary:
        return {"head_dim": head_dim, "partial_rotary_factor": rotary_dim / head_dim}
    if rotary_dim != head_dim:
        keys.refuse(
            "rope.dimension_count", f"is {rotary_dim}, but heads of {head_dim} must be rotated whole in this architecture"
        )
    return {"head_dim": head_dim}


def experts(keys: Keys, facts: TensorFacts, name: str) -> Config:
    """Translate the number of experts, under the key ``name``, and of those that a token gets."""
    count = keys.integer("expert_count", 0, least=0, most=facts.largest_dimension)
    if not count:
        keys.refuse("expert_count", "is missing or 0: this model has no experts, so estream cannot run it")
    return {name: count, "num_experts_per_tok": keys.integer("expert_used_count")}


def olmoe(keys: Keys, facts: TensorFacts) -> Config:
    config = decoder(keys, facts, "OlmoeForCausalLM")
    feed_forward_length = keys.integer("feed_forward_length")
    clip = {"clip_qkv": keys.number("attention.clamp_kqv")} if keys.has("attention.clamp_kqv") else {}
    return (
        config
        | head_sizes(keys, config)
        | experts(keys, facts, "num_experts")
        | {
            "intermediate_size": keys.integer("expert_feed_forward_length", feed_forward_length),
            "norm_topk_prob": keys.flag("expert_weights_norm", False),
        }
        | clip
    )


def mixtral(keys: Keys, facts: TensorFacts) -> Config:
    config = decoder(keys, facts, "MixtralForCausalLM")
    window = {"sliding_window": keys.integer("attention.sliding_window")} if keys.has("attention.sliding_window") else {}
    return (
        config
        | head_sizes(keys, config)
        | experts(keys, facts, "num_local_experts")
        | {
            "intermediate_size": keys.integer("feed_forward_length"),
        }
        | window
    )


def qwen3_moe(keys: Keys, facts: TensorFacts) -> Config:
    config = decoder(keys, facts, "Qwen3MoeForCausalLM")
    keys.integer("feed_forward_length", 0, least=0)  # for dense layers; this architecture has none
    return (
        config
        | head_sizes(keys, config)
        | experts(keys, facts, "num_experts")
        | {
            "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
            "norm_topk_prob": keys.flag("expert_weights_norm", True),
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    )


def qwen2_moe(keys: Keys, facts: TensorFacts) -> Config:
    config = decoder(keys, facts, "Qwen2MoeForCausalLM")
    dense = keys.integer("feed_forward_length")
    shared = facts.stored.get("blk.0.ffn_gate_shexp.weight")
    return (
        config
        | head_sizes(keys, config)
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


def deepseek(keys: Keys, facts: TensorFacts) -> Config:
    """DeepSeek-V2 (softmax scores) or V3 (sigmoid scores)."""
    sigmoid = keys.integer("expert_gating_func", _SOFTMAX, least=0) == _SIGMOID
    config = decoder(keys, facts, "DeepseekV3ForCausalLM" if sigmoid else "DeepseekV2ForCausalLM")
    rope_dim = keys.integer("rope.dimension_count")
    # Newer files give the sizes of the latent keys and values here, and those of heads under the keys with "_mla".
    most = facts.largest_dimension
    key, value = (keys.integer(f"attention.{part}_length", most=most) for part in ("key", "value"))
    key = keys.integer("attention.key_length_mla", key, most=most)
    value = keys.integer("attention.value_length_mla", value, most=most)
    if key <= rope_dim:
        keys.refuse("attention.key_length", f"is {key}, expected more than the {rope_dim} inputs that are rotated")
    n_group = keys.integer("expert_group_count", 1)
    softmax_method = "group_limited_greedy" if n_group > 1 else "greedy"
    result = config | experts(keys, facts, "n_routed_experts") | {
        "num_key_value_heads": config["num_attention_heads"],
        "q_lora_rank": keys.integer("attention.q_lora_rank") if keys.has("attention.q_lora_rank") else None,
        "kv_lora_rank": keys.integer("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope_dim,
        "qk_nope_head_dim": key - rope_dim,
        "v_head_dim": value,
        "head_dim": rope_dim,
        "intermediate_size": keys.integer("feed_forward_length"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "n_shared_experts": keys.integer("expert_shared_count", 0, least=0),
        "first_k_dense_replace": keys.integer("leading_dense_block_count", 0, least=0),
        "moe_layer_freq": 1,
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        "scoring_func": "sigmoid" if sigmoid else "softmax",
        "topk_method": "noaux_tc" if sigmoid else softmax_method,
        "n_group": n_group,
        "topk_group": keys.integer("expert_group_used_count", 1),
        "rope_interleave": True,
        "attention_bias": False,
    }  # fmt: skip
    log_multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0)
    if "rope_scaling" in config and log_multiplier:
        # mscale and mscale_all_dim are equal in all published models; files store mscale_all_dim / 10.
        mscale = float(f"{log_multiplier / 0.1:.6g}")
        result["rope_scaling"] |= {"mscale": mscale, "mscale_all_dim": mscale}
    return result


def glm4_moe(keys: Keys, facts: TensorFacts) -> Config:
    config = decoder(keys, facts, "Glm4MoeForCausalLM")
    keys.require("expert_gating_func", _SIGMOID)
    mtp_layers = keys.integer("nextn_predict_layers", 0, least=0)
    return config | head_sizes(keys, config, partial_rotary=True) | experts(keys, facts, "n_routed_experts") | {
        "num_hidden_layers": config["num_hidden_layers"] - mtp_layers,
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


def gpt_oss(keys: Keys, facts: TensorFacts) -> Config:
    config = decoder(keys, facts, "GptOssForCausalLM")
    keys.require("expert_gating_func", _SOFTMAX_TOP_K)
    keys.integer("feed_forward_length", 0, least=0)
    layers = config["num_hidden_layers"]
    if "rope_scaling" in config:
        config["rope_scaling"] |= {"truncate": False}
    return (
        config
        | head_sizes(keys, config)
        | experts(keys, facts, "num_local_experts")
        | {
            "intermediate_size": keys.integer("expert_feed_forward_length"),
            "sliding_window": keys.integer("attention.sliding_window"),
            "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)],
            "attention_bias": True,
            "swiglu_limit": 7.0,
        }
    )


def granite_moe(keys: Keys, facts: TensorFacts) -> Config:
    shared = facts.has("blk.0.ffn_gate_shexp.weight")
    config = decoder(keys, facts, "GraniteMoeSharedForCausalLM" if shared else "GraniteMoeForCausalLM")
    size = {"shared_intermediate_size": keys.integer("expert_shared_feed_forward_length")} if shared else {}
    head_dim = head_sizes(keys, config)["head_dim"]
    return config | experts(keys, facts, "num_local_experts") | {
        "intermediate_size": keys.integer("feed_forward_length"),
        "embedding_multiplier": keys.number("embedding_scale", 1.0),
        "residual_multiplier": keys.number("residual_scale", 1.0),
        "attention_multiplier": keys.number("attention.scale", 1.0 / math.sqrt(head_dim)),
        "logits_scaling": keys.number("logit_scale"),
        "attention_bias": False,
    } | size  # fmt: skip


def phimoe(keys: Keys, facts: TensorFacts) -> Config:
    config = decoder(keys, facts, "PhimoeForCausalLM")
    result = config | head_sizes(keys, config) | experts(keys, facts, "num_local_experts") | {
        "intermediate_size": keys.integer("feed_forward_length"),
        "attention_bias": facts.has("blk.0.attn_q.bias"),
        "lm_head_bias": facts.has("output.bias"),
        # llama.cpp writes 0 for a model without a window.
        "sliding_window": keys.integer("attention.sliding_window", 0, least=0) or None,
    }  # fmt: skip
    original_context = keys.integer("rope.scaling.original_context_length", config["max_position_embeddings"])
    mscale = keys.number("rope.scaling.attn_factor", 1.0)
    long, short = (facts.stored.get(f"rope_factors_{name}.weight") for name in ("long", "short"))
    if long is not None and short is not None:
        result["rope_scaling"] = {
            "rope_type": "longrope",
            "long_factor": facts.read(long),
            "short_factor": facts.read(short),
            "long_mscale": mscale,
            "short_mscale": mscale,
            "original_max_position_embeddings": original_context,
        }
    return result
