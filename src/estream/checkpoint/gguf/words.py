"""Refused settings in the words of a GGUF file: model families know those of Hugging Face alone."""

import re

from estream.checkpoint.gguf.keys import Keys

#: Keys of ``config.json``, and those of a file that they are made of; of several the first that the file has is meant.
_WORDS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("embedding_length",),
    "num_hidden_layers": ("block_count",),
    "max_position_embeddings": ("context_length",),
    "num_attention_heads": ("attention.head_count",),
    "num_key_value_heads": ("attention.head_count_kv", "attention.head_count"),
    "head_dim": ("attention.key_length",),
    "v_head_dim": ("attention.value_length_mla", "attention.value_length"),
    "qk_nope_head_dim": ("attention.key_length_mla", "attention.key_length"),
    "qk_rope_head_dim": ("rope.dimension_count",),
    "partial_rotary_factor": ("rope.dimension_count",),
    "q_lora_rank": ("attention.q_lora_rank",),
    "kv_lora_rank": ("attention.kv_lora_rank",),
    "clip_qkv": ("attention.clamp_kqv",),
    "sliding_window": ("attention.sliding_window",),
    "attention_multiplier": ("attention.scale",),
    "layer_types": ("attention.recurrent_layers", "full_attention_interval"),
    "rms_norm_eps": ("attention.layer_norm_rms_epsilon",),
    "rope_theta": ("rope.freq_base",),
    "rope_scaling": ("rope.scaling.type",),
    "rope_type": ("rope.scaling.type",),
    "factor": ("rope.scaling.factor",),
    "original_max_position_embeddings": ("rope.scaling.original_context_length",),
    "beta_fast": ("rope.scaling.yarn_beta_fast",),
    "beta_slow": ("rope.scaling.yarn_beta_slow",),
    "attention_factor": ("rope.scaling.yarn_attn_factor",),
    "mscale": ("rope.scaling.yarn_log_multiplier",),
    "mscale_all_dim": ("rope.scaling.yarn_log_multiplier",),
    "short_mscale": ("rope.scaling.attn_factor",),
    "long_mscale": ("rope.scaling.attn_factor",),
    "num_experts": ("expert_count",),
    "num_local_experts": ("expert_count",),
    "n_routed_experts": ("expert_count",),
    "num_experts_per_tok": ("expert_used_count",),
    "moe_intermediate_size": ("expert_feed_forward_length", "feed_forward_length"),
    "intermediate_size": ("feed_forward_length", "expert_feed_forward_length"),
    "shared_expert_intermediate_size": ("expert_shared_feed_forward_length",),
    "shared_intermediate_size": ("expert_shared_feed_forward_length",),
    "n_shared_experts": ("expert_shared_count",),
    "first_k_dense_replace": ("leading_dense_block_count",),
    "routed_scaling_factor": ("expert_weights_scale",),
    "norm_topk_prob": ("expert_weights_norm",),
    "scoring_func": ("expert_gating_func",),
    "topk_method": ("expert_group_count",),
    "n_group": ("expert_group_count",),
    "topk_group": ("expert_group_used_count",),
    "embedding_multiplier": ("embedding_scale",),
    "residual_multiplier": ("residual_scale",),
    "logits_scaling": ("logit_scale",),
    "linear_conv_kernel_dim": ("ssm.conv_kernel",),
    "linear_num_key_heads": ("ssm.group_count",),
    "linear_num_value_heads": ("ssm.time_step_rank",),
    "linear_key_head_dim": ("ssm.state_size",),
    "linear_value_head_dim": ("ssm.inner_size",),
}
_HUGGING_FACE = re.compile(r"'?\b(" + "|".join(_WORDS) + r")\b'?")


def in_gguf_words(message: str, keys: Keys) -> str:
    """Name the file for ``config.json``, and its keys for those of Hugging Face."""

    def name(match: re.Match[str]) -> str:
        candidates = _WORDS[match[1]]
        return f"'{keys.architecture}.{next(filter(keys.has, candidates), candidates[0])}'"

    head, found, problem = message.partition("config.json: ")
    return message if head or not found else f"{keys.path}: {_HUGGING_FACE.sub(name, problem)}"
