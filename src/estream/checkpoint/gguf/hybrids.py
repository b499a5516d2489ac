"""Qwen3-Next and Qwen3.5-MoE: their settings, and what llama.cpp's conversion does to their weights, undone. It adds one to
the weights of norms, stores the rates of decay as minus their exponentials, and brings value heads (of Qwen3.5) or the rows
of projections (of Qwen3-Next) into another order.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from estream.checkpoint.gguf.configs import Config, Facts, decoder, experts, heads
from estream.checkpoint.gguf.keys import Keys
from estream.checkpoint.gguf.views import View


def qwen3_next(keys: Keys, facts: Facts) -> Config:
    return _hybrid(keys, facts, "Qwen3NextForCausalLM") | {
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def qwen3_5_moe(keys: Keys, facts: Facts) -> Config:
    # How positions are divided among time, height and width; in text the three are one.
    keys.without_effect("rope.dimension_sections")
    return _hybrid(keys, facts, "Qwen3_5MoeForCausalLM")


def _hybrid(keys: Keys, facts: Facts, architecture: str) -> Config:
    config, most = decoder(keys, facts, architecture), facts.largest
    keys.integer("feed_forward_length", 0, least=0)  # of dense layers, of which there are none
    layers = config["num_hidden_layers"] - keys.integer("nextn_predict_layers", 0, least=0)
    values, inner = keys.integer("ssm.time_step_rank", most=most), keys.integer("ssm.inner_size", most=most)
    groups = keys.integer("ssm.group_count", most=most)
    if inner % values or values % groups:
        keys.refuse("ssm.inner_size", f"{inner} and 'ssm.time_step_rank' {values} must be multiples of {values} and {groups}")
    interval = keys.integer("full_attention_interval", 4)
    linear = keys.flags("attention.recurrent_layers") or [(layer + 1) % interval != 0 for layer in range(layers)]
    return config | heads(keys, config, partial=True) | experts(keys, facts, "num_experts") | {
        "num_hidden_layers": layers,
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.integer("expert_shared_feed_forward_length"),
        "linear_conv_kernel_dim": keys.integer("ssm.conv_kernel", most=most),
        "linear_num_key_heads": groups,
        "linear_num_value_heads": values,
        "linear_key_head_dim": keys.integer("ssm.state_size", most=most),
        "linear_value_head_dim": inner // values,
        "layer_types": ["linear_attention" if kind else "full_attention" for kind in linear[:layers]],
        "attention_bias": False,
    }  # fmt: skip


def undo(config: Mapping[str, Any], name: str, view: View) -> View:
    """A tensor as it was before conversion; ``name`` is that of Hugging Face, below the layer's."""
    if name.endswith("norm.weight") and name != "linear_attn.norm.weight":
        return replace(view, undo=_less_one)
    if name == "linear_attn.conv1d.weight" and len(view.shape) == 2:
        view = replace(view, shape=(view.shape[0], 1, view.shape[1]))
    if name == "linear_attn.A_log":
        view = replace(view, undo=_logarithm)
    if name == "linear_attn.in_proj_qkvz.weight":
        return _with_rows(view, _split_by_kind(*_sizes(config))) if len(view.pieces) > 1 else view
    return view if config["architectures"][0].startswith("Qwen3Next") else _with_grouped_heads(config, name, view)


def _with_grouped_heads(config: Mapping[str, Any], name: str, view: View) -> View:
    """With the value heads of one key head side by side; the file has the first of each, then the second of each, ..."""
    keys, group, key_dim, value_dim = _sizes(config)
    match name.split(".")[1] if name.startswith("linear_attn.") else "":
        case "in_proj_qkv" | "conv1d":
            return _with_rows(view, _tiled(keys, group, value_dim, 2 * keys * key_dim))
        case "in_proj_z":
            return _with_rows(view, _tiled(keys, group, value_dim))
        case "in_proj_b" | "in_proj_a":
            return _with_rows(view, _tiled(keys, group, 1))
        case "A_log" | "dt_bias":
            return _with_columns(view, _tiled(keys, group, 1))
        case "out_proj":
            return _with_columns(view, _tiled(keys, group, value_dim))
    return view


def _sizes(config: Mapping[str, Any]) -> tuple[int, int, int, int]:
    keys = config["linear_num_key_heads"]
    group = config["linear_num_value_heads"] // keys
    return keys, group, config["linear_key_head_dim"], config["linear_value_head_dim"]


@cache
def _tiled(keys: int, group: int, size: int, before: int = 0) -> tuple[int, ...]:
    """Where a row (k, g, i) of Hugging Face's, behind ``before`` others, lies in the file: at (g, k, i)."""
    heads = np.arange(keys * group * size).reshape(group, keys, size).swapaxes(0, 1).reshape(-1)
    return (*range(before), *(before + heads).tolist())


@cache
def _split_by_kind(keys: int, group: int, key_dim: int, value_dim: int) -> tuple[int, ...]:
    """Where the rows of each key head (its query, key, values, gates) lie in a file that has all queries first, then all keys,
    values and gates.
    """
    widths = (key_dim, key_dim, group * value_dim, group * value_dim)
    starts = np.cumsum([0, *(keys * width for width in widths)])
    kinds = [start + np.arange(keys * width).reshape(keys, width) for start, width in zip(starts, widths, strict=False)]
    return tuple(np.concatenate(kinds, 1).reshape(-1).tolist())


def _with_rows(view: View, order: tuple[int, ...]) -> View:
    """Where the sizes do not fit, the tensor stays as it is, and its shape is refused."""
    return replace(view, row_order=order) if view.rows == len(order) else view


def _with_columns(view: View, order: tuple[int, ...]) -> View:
    return replace(view, column_order=order) if view.columns == len(order) else view


def _less_one(values: np.ndarray) -> np.ndarray:
    return values - np.float32(1.0)


def _logarithm(values: np.ndarray) -> np.ndarray:
    # What is not negative gives no number, which is refused by name.
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.log(-values.astype(np.float64)).astype(np.float32)
