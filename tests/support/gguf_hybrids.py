"""Tiny hybrids of linear and full attention as llama.cpp's conversion writes them (``conversion/qwen.py`` there)."""

from typing import Any

import numpy as np

Tensors = dict[str, np.ndarray]

_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    **{f"self_attn.{n}_proj": f"attn_{n}" for n in "qkv"},
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    **{f"mlp.shared_expert.{n}_proj": f"ffn_{n}_shexp" for n in ("gate", "up", "down")},
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
}

SHAPE = {
    "num_key_value_heads": 2, "head_dim": 32, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
    "num_experts": 6, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
KEYS = {
    "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64, "expert_count": 6, "attention.key_length": 32,
    "attention.value_length": 32, "rope.dimension_count": 8, "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2,
    "ssm.time_step_rank": 6, "ssm.inner_size": 96, "nextn_predict_layers": 0,
}  # fmt: skip
SAME = tuple(SHAPE)


def _usual(name: str, value: np.ndarray) -> Tensors:
    if name == "mlp.shared_expert_gate.weight":
        return {"ffn_gate_inp_shexp.weight": value[0]}
    if name == "linear_attn.A_log":
        return {"ssm_a": -np.exp(value)}
    if name == "linear_attn.dt_bias":
        return {"ssm_dt.bias": value}
    if "conv1d" in name:
        value = value.squeeze()
    elif name.endswith("norm.weight") and name != "linear_attn.norm.weight":
        value = value + 1
    return {f"{_NAMES[name.removesuffix('.weight')]}.weight": value}


def qwen3_next(name: str, value: np.ndarray, config: Any) -> Tensors:
    if "in_proj_qkvz" not in name:
        return _usual(name, value)
    keys, key, hidden = config.linear_num_key_heads, config.linear_key_head_dim, value.shape[1]
    both = config.linear_num_value_heads // keys * config.linear_value_head_dim
    heads = value.reshape(keys, -1, hidden)
    kinds = np.split(heads, [key, 2 * key, 2 * key + both], 1)
    q, k, v, z = (kind.reshape(-1, hidden) for kind in kinds)
    return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": z}


def qwen3_next_before_2026(name: str, value: np.ndarray, config: Any) -> Tensors:
    return {"ssm_in.weight": value} if "in_proj_qkvz" in name else qwen3_next(name, value, config)


def qwen3_5(name: str, value: np.ndarray, config: Any) -> Tensors:
    keys, heads, size = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
    before = 2 * keys * config.linear_key_head_dim

    def tiled(values: np.ndarray, size: int, axis: int = 0) -> np.ndarray:
        moved = np.moveaxis(values, axis, 0)
        grouped = moved.reshape(keys, heads // keys, size, *moved.shape[1:]).swapaxes(0, 1)
        return np.moveaxis(grouped.reshape(moved.shape), 0, axis)

    match name.removeprefix("linear_attn.").split(".")[0]:
        case "in_proj_qkv" | "conv1d":
            value = np.concatenate([value[:before], tiled(value[before:], size)])
        case "in_proj_z":
            value = tiled(value, size)
        case "in_proj_b" | "in_proj_a" | "A_log" | "dt_bias":
            value = tiled(value, 1)
        case "out_proj":
            value = tiled(value, size, 1)
    return _usual(name, value)
