"""The grids of llama.cpp's Q4_K, Q5_0, Q6_K and Q8_0, and the mix of them that Q4_K_M is, as far as quality goes: weights in,
the weights that they become out. Formats: ggml/src/ggml-quants.c of llama.cpp; the search for Q4_K follows its description.
"""

import numpy as np

#: Bits of a weight.
BITS = {"Q4_K": 4.5, "Q5_0": 5.5, "Q6_K": 6.5625, "Q8_0": 8.5}


def _half(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


def _over(x: np.ndarray, by: np.ndarray | float) -> np.ndarray:
    by = np.broadcast_to(by, x.shape)
    return np.divide(x, by, out=np.zeros_like(x), where=by != 0)


def q8_0(w: np.ndarray) -> np.ndarray:
    x = w.reshape(-1, 32)
    d = np.abs(x).max(1, keepdims=True) / 127
    return (_half(d) * np.rint(_over(x, d))).reshape(w.shape)


def q5_0(w: np.ndarray) -> np.ndarray:
    x = w.reshape(-1, 32)
    d = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1) / -16
    return (_half(d) * np.clip(np.rint(_over(x, d)), -16, 15)).reshape(w.shape)


def q6_k(w: np.ndarray) -> np.ndarray:
    x = w.reshape(-1, 16, 16)
    s = np.take_along_axis(x, np.abs(x).argmax(2)[..., None], 2) / -32
    d = _half(np.abs(s).max(1, keepdims=True) / 127)
    s = d * np.rint(_over(s, d))
    return (s * np.clip(np.rint(_over(x, s)), -32, 31)).reshape(w.shape)


def q4_k(w: np.ndarray) -> np.ndarray:
    """Blocks of 256: eight times 32 codes of 0..15, a 6-bit scale and a 6-bit minimum, on one fp16 factor each."""
    x = w.reshape(-1, 32).astype(np.float64)
    weight = np.sqrt((x * x).mean(1, keepdims=True)) + np.abs(x)
    low, high = np.minimum(x.min(1, keepdims=True), 0), x.max(1, keepdims=True)
    best = np.full((len(x), 1), np.inf)
    scale, minimum = np.zeros_like(best), np.zeros_like(best)
    for step in range(21):
        inverse = _over(np.full_like(high, 15 - 1 + 0.1 * step), high - low)
        q = np.clip(np.rint(inverse * (x - low)), 0, 15)
        # The weighted least squares of x = s q + m, the minimum never above zero.
        sw, sq, sqq = ((weight * f).sum(1, keepdims=True) for f in (np.ones_like(q), q, q * q))
        sx, sxq = (weight * x).sum(1, keepdims=True), (weight * x * q).sum(1, keepdims=True)
        s = _over(sw * sxq - sx * sq, sw * sqq - sq * sq)
        m = _over(sqq * sx - sq * sxq, sw * sqq - sq * sq)
        s, m = np.where(m > 0, _over(sxq, sqq), s), np.minimum(m, 0)
        error = (weight * (s * q + m - x) ** 2).sum(1, keepdims=True)
        better = error < best
        best, scale, minimum = np.where(better, error, best), np.where(better, s, scale), np.where(better, m, minimum)
    scale, minimum = scale.reshape(-1, 8, 1), -minimum.reshape(-1, 8, 1)
    d, dm = (_half(v.max(1, keepdims=True) / 63) for v in (scale, minimum))
    s, m = (f * np.clip(np.rint(_over(v, f)), 0, 63) for v, f in ((scale, d), (minimum, dm)))
    x = x.reshape(-1, 8, 32)
    return (s * np.clip(np.rint(_over(x + m, s)), 0, 15) - m).astype(np.float32).reshape(w.shape)


_GRIDS = {"Q4_K": q4_k, "Q5_0": q5_0, "Q6_K": q6_k, "Q8_0": q8_0}
#: What llama.cpp takes where rows are not whole blocks of 256.
_INSTEAD = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}


def q4_k_m(name: str, w: np.ndarray, layer: int, layers: int) -> tuple[np.ndarray, str]:
    """One matrix of a layer in the mix: values and down have 6 bits in the layers that count more, everything else 4."""
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    grid = "Q6_K" if more and ("v_proj" in name or "down_proj" in name) else "Q4_K"
    grid = grid if w.shape[-1] % 256 == 0 else _INSTEAD[grid]
    return _GRIDS[grid](w), grid
