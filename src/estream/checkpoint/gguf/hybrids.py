"""Qwen3-Next and Qwen3.5-MoE: translates their settings, and reverts llama.cpp's changes to their weights.

Its conversion adds 1 to the weights of norms, stores -exp(A_log) in place of A_log, and reorders the value heads (Qwen3.5) or
the rows of the fused projections (Qwen3-Next).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from estream.checkpoint.gguf.configs import Config, TensorFacts, decoder, experts, head_sizes
from estream.checkpoint.gguf.keys import Keys
from estream.checkpoint.gguf.views import View


def qwen3_next(keys: Keys, facts: TensorFacts) -> Config:
    return _hybrid(keys, facts, "Qwen3NextForCausalLM") | {
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def qwen3_5_moe(keys: Keys, facts: TensorFacts) -> Config:
    # M-RoPE's split among time, height and width; the three positions are equal in text.
    keys.without_effect("rope.dimension_sections")
    return _hybrid(keys, facts, "Qwen3_5MoeForCausalLM")


def _hybrid(keys: Keys, facts: TensorFacts, architecture: str) -> Config:
    config, most = decoder(keys, facts, architecture), facts.largest_dimension
    keys.integer("feed_forward_length", 0, least=0)  # for dense layers; this architecture has none
    layers = config["num_hidden_layers"] - keys.integer("nextn_predict_layers", 0, least=0)
    value_heads, inner = keys.integer("ssm.time_step_rank", most=most), keys.integer("ssm.inner_size", most=most)
    key_heads = keys.integer("ssm.group_count", most=most)
    if inner % value_heads:
        keys.refuse("ssm.inner_size", f"is {inner}, expected a multiple of 'ssm.time_step_rank', {value_heads}")
    if value_heads % key_heads:
        keys.refuse("ssm.time_step_rank", f"is {value_heads}, expected a multiple of 'ssm.group_count', {key_heads}")
    interval = keys.integer("full_attention_interval", 4)
    linear = keys.flags("attention.recurrent_layers") or [(layer + 1) % interval != 0 for layer in range(layers)]
    return config | head_sizes(keys, config, partial_rotary=True) | experts(keys, facts, "num_experts") | {
        "num_hidden_layers": layers,
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.integer("expert_shared_feed_forward_length"),
        "linear_conv_kernel_dim": keys.integer("ssm.conv_kernel", most=most),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": keys.integer("ssm.state_size", most=most),
        "linear_value_head_dim": inner // value_heads,
        "layer_types": ["linear_attention" if is_linear else "full_attention" for is_linear in linear[:layers]],
        "attention_bias": False,
    }  # fmt: skip


def undo(config: Mapping[str, Any], name: str, view: View) -> View:
    """Revert what llama.cpp's conversion did to a tensor. ``name`` is its Hugging Face name below ``model.layers.N.``."""
    if name.endswith("norm.weight") and name != "linear_attn.norm.weight":
        return replace(view, undo=_subtract_one)
    if name == "linear_attn.conv1d.weight" and len(view.shape) == 2:
        view = replace(view, shape=(view.shape[0], 1, view.shape[1]))
    if name == "linear_attn.A_log":
        view = replace(view, undo=_log_of_negative)
    if name == "linear_attn.in_proj_qkvz.weight":
        return _with_rows(view, _qkvz_order(*_linear_sizes(config))) if len(view.pieces) > 1 else view
    return view if config["architectures"][0].startswith("Qwen3Next") else _with_grouped_heads(config, name, view)


def _with_grouped_heads(config: Mapping[str, Any], name: str, view: View) -> View:
    """Put the value heads of one key head side by side; the file has the first of each key head, then the second of each."""
    key_heads, group, key_dim, value_dim = _linear_sizes(config)
    match name.split(".")[1] if name.startswith("linear_attn.") else "":
        case "in_proj_qkv" | "conv1d":
            return _with_rows(view, _value_head_order(key_heads, group, value_dim, 2 * key_heads * key_dim))
        case "in_proj_z":
            return _with_rows(view, _value_head_order(key_heads, group, value_dim))
        case "in_proj_b" | "in_proj_a":
            return _with_rows(view, _value_head_order(key_heads, group, 1))
        case "A_log" | "dt_bias":
            return _with_columns(view, _value_head_order(key_heads, group, 1))
        case "out_proj":
            return _with_columns(view, _value_head_order(key_heads, group, value_dim))
    return view


def _linear_sizes(config: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Key heads, value heads per key head, and the sizes of a key head and of a value head."""
    key_heads = config["linear_num_key_heads"]
    group = config["linear_num_value_heads"] // key_heads
    return key_heads, group, config["linear_key_head_dim"], config["linear_value_head_dim"]


@cache
def _value_head_order(key_heads: int, group: int, size: int, before: int = 0) -> tuple[int, ...]:
    """The file's row for each row of Hugging Face: (k, g, i), behind ``before`` others that stay, is stored at (g, k, i)."""
    stored = np.arange(key_heads * group * size).reshape(group, key_heads, size).swapaxes(0, 1).reshape(-1)
    return (*range(before), *(before + stored).tolist())


@cache
def _qkvz_order(key_heads: int, group: int, key_dim: int, value_dim: int) -> tuple[int, ...]:
    """The file's row for each row of ``in_proj_qkvz``, which has q, k, v and z of each key head; the file has all q rows,
    then all k, v and z rows.
    """
    counts = (key_dim, key_dim, group * value_dim, group * value_dim)
    starts = np.cumsum([0, *(key_heads * count for count in counts)])
    stored = [s + np.arange(key_heads * count).reshape(key_heads, count) for s, count in zip(starts, counts, strict=False)]
    return tuple(np.concatenate(stored, 1).reshape(-1).tolist())


def _with_rows(view: View, order: tuple[int, ...]) -> View:
    """Reorder the rows. A view of another size stays as it is: the check of shapes refuses it later."""
    return replace(view, row_order=order) if view.rows == len(order) else view


def _with_columns(view: View, order: tuple[int, ...]) -> View:
    return replace(view, column_order=order) if view.columns == len(order) else view


def _subtract_one(values: np.ndarray) -> np.ndarray:
    return values - np.float32(1.0)


def _log_of_negative(values: np.ndarray) -> np.ndarray:
    # A value that is not negative gives NaN or -inf, which ``read_float32`` refuses by the tensor's name.
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.log(-values.astype(np.float64)).astype(np.float32)
