"""Tiny models of the architectures besides the three families, written to GGUF as llama.cpp's conversion writes them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import gguf_hybrids
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize
from gguf_files import ids_only, permute, set_keys

BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 96,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}

Tensors = dict[str, np.ndarray]
#: From a layer's tensor (its name below ``model.layers.N.``) to those below ``blk.N.``.
Rename = Callable[[str, np.ndarray, Any], Tensors]


def _usual(name: str, value: np.ndarray, config: Any) -> Tensors:
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        **{f"self_attn.{n}_proj": f"attn_{n}" for n in "qkv"},
        "self_attn.o_proj": "attn_output",
        "mlp.gate": "ffn_gate_inp",
        **{f"mlp.{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")},
        **{f"mlp.{s}.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down") for s in ("shared_expert", "shared_experts")},
    }
    stem, _, kind = name.rpartition(".")
    return {f"{names[stem]}.{kind}": value}


def _qwen2(name: str, value: np.ndarray, config: Any) -> Tensors:
    if name == "mlp.shared_expert_gate.weight":
        return {"ffn_gate_inp_shexp.weight": value[0]}
    return _usual(name, value, config)


def _deepseek(name: str, value: np.ndarray, config: Any) -> Tensors:
    if name == "mlp.gate.e_score_correction_bias":
        return {"exp_probs_b.bias": value}
    if name == "self_attn.kv_b_proj.weight":
        heads, plain = config.num_attention_heads, config.qk_nope_head_dim
        both = value.reshape(heads, -1, value.shape[1])
        return {"attn_k_b.weight": both[:, :plain].swapaxes(1, 2), "attn_v_b.weight": both[:, plain:]}
    names = {
        "self_attn.q_a_proj": "attn_q_a",
        "self_attn.q_a_layernorm": "attn_q_a_norm",
        "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    }
    stem = name.removesuffix(".weight")
    return {f"{names[stem]}.weight": value} if stem in names else _usual(name, value, config)


def _deepseek_before_2025(name: str, value: np.ndarray, config: Any) -> Tensors:
    return {"attn_kv_b.weight": value} if "kv_b_proj" in name else _deepseek(name, value, config)


def _glm4(name: str, value: np.ndarray, config: Any) -> Tensors:
    if name == "mlp.gate.e_score_correction_bias":
        return {"exp_probs_b.bias": value}
    if name == "post_attention_layernorm.weight":
        return {"post_attention_norm.weight": value}
    if "_norm" in name and "self_attn" in name:
        return {name.replace("self_attn.", "attn_"): value}
    return _usual(name, value, config)


def _gpt_oss(name: str, value: np.ndarray, config: Any) -> Tensors:
    if "gate_up_proj" in name:
        kind = "bias" if "bias" in name else "weight"
        value = value if kind == "bias" else value.swapaxes(1, 2)
        return {f"ffn_gate_exps.{kind}": value[:, ::2], f"ffn_up_exps.{kind}": value[:, 1::2]}
    if name == "mlp.experts.down_proj":
        return {"ffn_down_exps.weight": value.swapaxes(1, 2)}
    names = {
        "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
        "mlp.router.weight": "ffn_gate_inp.weight",
        "mlp.router.bias": "ffn_gate_inp.bias",
        "self_attn.sinks": "attn_sinks.weight",
        "post_attention_layernorm.weight": "post_attention_norm.weight",
    }
    return {names[name]: value} if name in names else _usual(name, value, config)


def _granite(name: str, value: np.ndarray, config: Any) -> Tensors:
    if "input_linear" in name:
        half = value.shape[-2] // 2
        kind = "shexp" if "shared" in name else "exps"
        return {f"ffn_gate_{kind}.weight": value[..., :half, :], f"ffn_up_{kind}.weight": value[..., half:, :]}
    if "output_linear" in name:
        return {"ffn_down_shexp.weight" if "shared" in name else "ffn_down_exps.weight": value}
    if name == "block_sparse_moe.router.layer.weight":
        return {"ffn_gate_inp.weight": value}
    for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
        if name == f"self_attn.{part}_proj.weight":
            return {f"attn_{part}.weight": permute(value, heads)}
    return _usual(name, value, config)


def _phimoe(name: str, value: np.ndarray, config: Any) -> Tensors:
    return {"ffn_gate_inp.weight": value} if name == "block_sparse_moe.gate.weight" else _usual(name, value, config)


@dataclass(frozen=True)
class Case:
    """``keys`` below the architecture's name, besides those that all have; ``same`` are config.json's that must come back."""

    architecture: str
    model: str
    shape: dict[str, Any]
    rename: Rename
    keys: dict[str, Any]
    same: tuple[str, ...]
    expected: dict[str, Any] = field(default_factory=dict)


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
_DEEPSEEK_SHAPE = {
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 12, "n_routed_experts": 8, "n_shared_experts": 2, "intermediate_size": 96, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
}  # fmt: skip
_DEEPSEEK_KEYS = {
    "attention.head_count_kv": 1, "attention.q_lora_rank": 24, "attention.kv_lora_rank": 32, "attention.key_length": 40,
    "attention.value_length": 32, "attention.key_length_mla": 24, "attention.value_length_mla": 12, "rope.dimension_count": 8,
    "expert_count": 8, "expert_shared_count": 2, "feed_forward_length": 96, "expert_feed_forward_length": 32,
    "leading_dense_block_count": 1, "expert_group_count": 2, "expert_group_used_count": 1, "expert_weights_scale": 2.5,
    "expert_weights_norm": True, "expert_gating_func": 2,
}  # fmt: skip
_DEEPSEEK_SAME = (*_DEEPSEEK_SHAPE, "rope_interleave")

CASES: dict[str, Case] = {
    "qwen2moe": Case(
        "qwen2moe", "Qwen2Moe",
        {"num_key_value_heads": 2, "intermediate_size": 96, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
         "num_experts": 6},
        _qwen2,
        {"feed_forward_length": 96, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64,
         "expert_count": 6},
        ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "num_experts", "norm_topk_prob",
         "decoder_sparse_step", "mlp_only_layers"),
        {"qkv_bias": True},
    ),
    "deepseek2, V3": Case(
        "deepseek2", "DeepseekV3", _DEEPSEEK_SHAPE, _deepseek, _DEEPSEEK_KEYS, _DEEPSEEK_SAME,
        {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    ),
    "deepseek2, V2, with YaRN, before 2025": Case(
        "deepseek2", "DeepseekV2",
        _DEEPSEEK_SHAPE | {"q_lora_rank": None, "norm_topk_prob": False, "n_group": 1, "routed_scaling_factor": 1.0,
                           "rope_parameters": _YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}},
        _deepseek_before_2025,
        {k: v for k, v in _DEEPSEEK_KEYS.items() if "mla" not in k and "q_lora" not in k and "group" not in k
         and "gating" not in k and "weights" not in k}
        | {"attention.head_count_kv": 4, "attention.key_length": 24, "attention.value_length": 12, "rope.scaling.type": "yarn",
           "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32, "rope.scaling.yarn_log_multiplier": 0.0707},
        ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "norm_topk_prob", "routed_scaling_factor"),
        {"topk_method": "greedy", "num_key_value_heads": 4,
         "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
                          "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707}},
    ),
    "glm4moe": Case(
        "glm4moe", "Glm4Moe",
        {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 8,
         "n_shared_experts": 1, "first_k_dense_replace": 1, "use_qk_norm": True, "attention_bias": True,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        _glm4,
        {"feed_forward_length": 96, "expert_feed_forward_length": 32, "expert_count": 8, "expert_shared_count": 1,
         "leading_dense_block_count": 1, "attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 8,
         "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.0, "nextn_predict_layers": 1,
         "block_count": 3},
        ("head_dim", "intermediate_size", "moe_intermediate_size", "n_routed_experts", "n_shared_experts",
         "first_k_dense_replace", "use_qk_norm", "attention_bias", "norm_topk_prob", "n_group",
         "topk_group", "routed_scaling_factor"),
        {"partial_rotary_factor": 0.5},
    ),
    "gpt-oss": Case(
        "gpt-oss", "GptOss",
        {"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 32, "num_local_experts": 4, "sliding_window": 16,
         "rope_parameters": _YARN},
        _gpt_oss,
        {"expert_feed_forward_length": 32, "feed_forward_length": 32, "expert_count": 4, "attention.sliding_window": 16,
         "attention.key_length": 16, "attention.value_length": 16, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
         "rope.scaling.original_context_length": 32},
        ("head_dim", "intermediate_size", "num_local_experts", "sliding_window", "layer_types", "attention_bias"),
        {"swiglu_limit": 7.0},
    ),
    "granitemoe": Case(
        "granitemoe", "GraniteMoe",
        {"num_key_value_heads": 2, "intermediate_size": 32, "num_local_experts": 4, "embedding_multiplier": 12.0,
         "residual_multiplier": 0.22, "attention_multiplier": 0.015625, "logits_scaling": 6.0},
        _granite,
        {"feed_forward_length": 32, "expert_count": 4, "embedding_scale": 12.0, "residual_scale": 0.22,
         "attention.scale": 0.015625, "logit_scale": 6.0, "rope.dimension_count": 16},
        ("intermediate_size", "num_local_experts", "embedding_multiplier", "residual_multiplier", "attention_multiplier",
         "logits_scaling", "attention_bias"),
    ),
    "granitemoe, shared": Case(
        "granitemoe", "GraniteMoeShared",
        {"num_key_value_heads": 2, "intermediate_size": 32, "num_local_experts": 4, "shared_intermediate_size": 48},
        _granite,
        {"feed_forward_length": 32, "expert_count": 4, "expert_shared_feed_forward_length": 48, "logit_scale": 1.0,
         "attention.scale": 1.0},
        ("shared_intermediate_size", "attention_multiplier", "logits_scaling"),
    ),
    "phimoe": Case(
        "phimoe", "Phimoe",
        {"num_key_value_heads": 2, "intermediate_size": 32, "num_local_experts": 4, "attention_bias": True,
         "lm_head_bias": True,
         "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32,
                             "long_factor": [1.0, 2.0, 3.0, 4.5, 5.0, 6.0, 7.0, 8.0], "short_factor": [1.0] * 8, "factor": 4.0,
                             "long_mscale": 1.25, "short_mscale": 1.25}},
        _phimoe,
        {"feed_forward_length": 32, "expert_count": 4, "rope.scaling.original_context_length": 32, "rope.dimension_count": 16,
         "rope.scaling.attn_factor": 1.25, "attention.sliding_window": 0},
        ("intermediate_size", "num_local_experts", "attention_bias", "lm_head_bias"),
        {"sliding_window": None,
         "rope_scaling": {"rope_type": "longrope", "long_factor": [1.0, 2.0, 3.0, 4.5, 5.0, 6.0, 7.0, 8.0],
                          "short_factor": [1.0] * 8, "long_mscale": 1.25, "short_mscale": 1.25,
                          "original_max_position_embeddings": 32}},
    ),
    "qwen3next": Case(
        "qwen3next", "Qwen3Next", gguf_hybrids.SHAPE, gguf_hybrids.qwen3_next,
        gguf_hybrids.KEYS | {"attention.recurrent_layers": [True, False]},
        (*gguf_hybrids.SAME, "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"), {"partial_rotary_factor": 0.25},
    ),
    "qwen3next, before 2026": Case(
        "qwen3next", "Qwen3Next", gguf_hybrids.SHAPE, gguf_hybrids.qwen3_next_before_2026,
        gguf_hybrids.KEYS | {"full_attention_interval": 2}, gguf_hybrids.SAME,
    ),
    "qwen35moe": Case(
        "qwen35moe", "Qwen3_5Moe", gguf_hybrids.SHAPE, gguf_hybrids.qwen3_5,
        gguf_hybrids.KEYS | {"full_attention_interval": 2, "rope.dimension_sections": [2, 1, 1, 0]},
        gguf_hybrids.SAME, {"partial_rotary_factor": 0.25},
    ),
}  # fmt: skip


def write(path: Path, case: Case, config: Any, saved: Tensors, quantized: Kind = Kind.F32) -> None:
    """``quantized`` is the type of the matrices of attention."""
    ids_only(writer := gguf.GGUFWriter(path, case.architecture))
    writer.add_vocab_size(config.vocab_size)
    usual = {
        "block_count": 2, "context_length": 128, "embedding_length": 64, "attention.head_count": 4,
        "attention.head_count_kv": config.num_key_value_heads, "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 1e4, "expert_used_count": 2,
    }  # fmt: skip
    set_keys(writer, {f"{case.architecture}.{name}": value for name, value in (usual | case.keys).items()})
    for name, value in _gguf_tensors(case, config, saved).items():
        kind = quantized if name.split(".")[-2] in _OF_ATTENTION else Kind.F32
        writer.add_tensor(name, quantize(np.ascontiguousarray(value, np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_OF_ATTENTION = ("attn_qkv", "attn_gate", "ssm_out", "ssm_in", "ssm_ba", "attn_q", "attn_k", "attn_v", "attn_output")


def _gguf_tensors(case: Case, config: Any, saved: Tensors) -> Tensors:
    result: Tensors = {}
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, value in saved.items():
        if not name.startswith("model.layers."):
            stem = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
            result[f"{stem[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}"] = value
            continue
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        pieces = rest.split(".")
        if "experts" in pieces and pieces[pieces.index("experts") + 1].isdigit():
            number, kind = int(pieces[-3]), pieces[-2]
            part = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
            experts.setdefault(f"blk.{layer}.ffn_{part[kind]}_exps.weight", {})[number] = value
        else:
            result |= {f"blk.{layer}.{n}": v for n, v in case.rename(rest, value, config).items()}
    result |= {name: np.stack([found[e] for e in range(len(found))]) for name, found in experts.items()}
    if case.architecture in ("qwen3next", "qwen35moe"):
        result["output_norm.weight"] = result["output_norm.weight"] + 1
    if case.architecture == "glm4moe":
        result["blk.2.nextn.eh_proj.weight"] = np.ones((64, 128), np.float32)
    if case.architecture == "phimoe":
        factors = {kind: config.rope_parameters[f"{kind}_factor"] for kind in ("long", "short")}
        result |= {f"rope_factors_{kind}.weight": np.array(values, np.float32) for kind, values in factors.items()}
    return result
