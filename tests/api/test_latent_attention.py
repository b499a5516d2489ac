"""Latent attention with the positions of DeepSeek-V2-Lite beyond its original context of 4096, against the whole model
written in NumPy from the paper (arXiv 2405.04434) and YaRN's (arXiv 2309.00071): float64, pairs rotated as complex numbers.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from reference import state_dict
from tiny import make_tiny
from tiny_latent import V2_SHAPES, YARN

import estream
from estream.conversion.convert import ConvertOptions, convert

TOKENS = 4500
WANTED = [0, 100, 4095, 4096, 4300, TOKENS - 1]
SHAPE = V2_SHAPES["as V2-Lite"] | {
    "num_hidden_layers": 2,
    "max_position_embeddings": 163840,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "qk_nope_head_dim": 16,
    # The size of the original, so that wavelengths are on both sides of the context.
    "qk_rope_head_dim": 64,
}


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + eps) * weight


def _rotate(x: np.ndarray) -> np.ndarray:
    """x [tokens, 64]: neighbours are real and imaginary part."""
    dims = x.shape[1]
    correction = [dims * math.log(4096 / (beta * 2 * math.pi)) / (2 * math.log(10000)) for beta in (32, 1)]
    low, high = math.floor(correction[0]), math.ceil(correction[1])
    pair = np.arange(dims // 2)
    slow = np.clip((pair - low) / (high - low), 0, 1)
    frequencies = 10000.0 ** (-2 * pair / dims) * (1 - slow + slow / 40)
    turned = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * np.arange(len(x))[:, None] * frequencies)
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


def _attention(x: np.ndarray, w: dict[str, np.ndarray], rows: list[int] | None) -> np.ndarray:
    heads, plain, rotated, value, rank = 2, 16, 64, 16, 32
    scale = (plain + rotated) ** -0.5 * (0.1 * 0.707 * math.log(40) + 1) ** 2
    down = x @ w["kv_a_proj_with_mqa"].T
    shared = _rotate(down[:, rank:])
    up = (_norm(down[:, :rank], w["kv_a_layernorm"], 1e-6) @ w["kv_b_proj"].T).reshape(len(x), heads, plain + value)
    queries = (x @ w["q_proj"].T).reshape(len(x), heads, plain + rotated)
    positions = np.arange(len(x)) if rows is None else np.array(rows)
    out = []
    for h in range(heads):
        turned = _rotate(queries[:, h, plain:])[positions]
        scores = (queries[positions, h, :plain] @ up[:, h, :plain].T + turned @ shared.T) * scale
        scores[np.arange(len(x)) > positions[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(1, keepdims=True))
        out.append(weights / weights.sum(1, keepdims=True) @ up[:, h, plain:])
    return np.concatenate(out, 1) @ w["o_proj"].T


def _mlp(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    hidden = x @ gate.T
    return (hidden / (1 + np.exp(-hidden)) * (x @ up.T)) @ down.T


def _model(state: dict[str, np.ndarray], ids: np.ndarray, wanted: list[int]) -> np.ndarray:
    state = {name: values.astype(np.float64) for name, values in state.items()}
    x = state["model.embed_tokens.weight"][ids]
    for layer, rows in ((0, None), (1, wanted)):
        prefix = f"model.layers.{layer}."
        w = {name.removeprefix(prefix).removesuffix(".weight"): v for name, v in state.items() if name.startswith(prefix)}
        own = {name.removeprefix("self_attn."): v for name, v in w.items() if name.startswith("self_attn.")}
        x = (x if rows is None else x[rows]) + _attention(_norm(x, w["input_layernorm"], 1e-5), own, rows)
        normed = _norm(x, w["post_attention_layernorm"], 1e-5)
        names = ("gate_proj", "up_proj", "down_proj")
        if layer == 0:
            x = x + _mlp(normed, *(w[f"mlp.{name}"] for name in names))
            continue
        logits = normed @ w["mlp.gate"].T
        scores = np.exp(logits - logits.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
        result = _mlp(normed, *(w[f"mlp.shared_experts.{name}"] for name in names))
        for row, chosen in enumerate(np.argsort(-scores, 1)[:, :3]):
            for e in chosen:
                matrices = (w[f"mlp.experts.{e}.{name}"] for name in names)
                result[row] += scores[row, e] * _mlp(normed[row], *matrices)
        x = x + result
    return _norm(x, state["model.norm.weight"], 1e-5) @ state["lm_head.weight"].T


def test_positions_beyond_the_original_context(tmp_path: Path):
    make_tiny(tmp_path / "source", "deepseek_v2", SHAPE)
    package = convert(tmp_path / "source", tmp_path / "tiny.estream", ConvertOptions(8))
    attention = package.manifest.config.attention
    assert attention.scale == pytest.approx(80**-0.5 * (0.1 * YARN["mscale_all_dim"] * math.log(40) + 1) ** 2)
    ids = np.random.default_rng(3).integers(0, 330, TOKENS).astype(np.int32)
    expected = _model(state_dict(package, tmp_path / "source"), ids, WANTED)
    with estream.load(package.path, activations="float") as model:
        found = model.prefill(ids, positions=WANTED).logits
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
