"""What each graph of the NPU computes, in NumPy and double precision, and random values for its inputs."""

import numpy as np

from estream.package.npu.graph_specs import ACCUMULATOR, LOWEST, ROW_MAX, ROW_SUM, GraphSpec
from estream.package.npu.matrices import dequantise, pack_matrix
from estream.package.npu.shapes import AttentionShapes, NpuShapes, RoutingShapes

Arrays = dict[str, np.ndarray]


def random_weights(spec: GraphSpec, rng: np.random.Generator) -> Arrays:
    """For every weight of a graph: matrices keep the size of their inputs, norms are near 1."""
    arrays: Arrays = {}
    for m in spec.matrices:
        top = 7 if m.bits == 4 else 127
        codes = rng.integers(-top - (m.bits == 4), top + 1, (m.inputs, m.outputs), dtype=np.int8)
        scales = rng.uniform(0.5, 1.5, (m.inputs // m.group, m.outputs)) * 1.7 / top / np.sqrt(m.inputs)
        arrays |= pack_matrix(m, codes, scales.astype(np.float16))
    for tensor in spec.inputs:
        if tensor.name.endswith("_norm"):
            arrays[tensor.name] = rng.uniform(0.5, 1.5, tensor.shape).astype(np.float16)
        elif tensor.weight and tensor.name not in arrays:
            arrays[tensor.name] = (rng.standard_normal(tensor.shape) / np.sqrt(tensor.shape[0])).astype(np.float16)
    return arrays


def matrix(spec: GraphSpec, arrays: Arrays, name: str) -> np.ndarray:
    return dequantise(spec.matrix(name), arrays).astype(np.float64)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def mlp(spec: GraphSpec, a: Arrays) -> Arrays:
    x = a["x"].astype(np.float64)
    gate, up = x @ matrix(spec, a, "gate"), x @ matrix(spec, a, "up")
    y = (gate / (1 + np.exp(-gate)) * up) @ matrix(spec, a, "down")
    return {"sums_out": a["sums"] + y * a["weights"]}


def rotate(shape: AttentionShapes, x: np.ndarray, a: Arrays) -> np.ndarray:
    """x [rows, heads, any]."""
    half = shape.rotated // 2
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cosine, sine = a["cosine"][:, None].astype(np.float64), a["sine"][:, None].astype(np.float64)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine, rest], -1)


def qkv(spec: GraphSpec, shapes: NpuShapes, a: Arrays) -> Arrays:
    s, total = shapes.attention, a["high"].astype(np.float64) + a["low"] + a["delta"]
    x = rms_norm(total.astype(np.float16), a["input_norm"], shapes.norm_eps)
    rows = len(x)

    def heads(name: str, count: int, size: int, source: np.ndarray = x) -> np.ndarray:
        y = source @ matrix(spec, a, name)
        if s.bias:
            y = y + a[f"{name}_bias"]
        if s.qk_norm == "projection" and name in "qk":
            y = rms_norm(y, a[f"{name}_norm"], shapes.norm_eps)
        y = y.reshape(rows, count, size)
        if s.qk_norm == "head" and name in "qk":
            y = rms_norm(y, a[f"{name}_norm"], shapes.norm_eps)
        return np.clip(y, -s.clip, s.clip) if s.clip else y

    if s.kv_lora_rank:
        source = rms_norm(x @ matrix(spec, a, "q_a"), a["q_a_norm"], s.latent_eps) if s.q_lora_rank else x
        q = rotate(s, heads("q", s.heads, s.qk_dim, source), a)
        latent = rms_norm(x @ matrix(spec, a, "kv_a"), a["kv_a_norm"], s.latent_eps)
        shared = rotate(s, (x @ matrix(spec, a, "k_rope"))[:, None], a)
        plain = heads("k", s.heads, s.qk_dim - s.rotated, latent)
        k = np.concatenate([np.broadcast_to(shared, (rows, s.heads, s.rotated)), plain], -1)
        v = heads("v", s.heads, s.v_dim, latent)
    else:
        q, k = (rotate(s, heads(n, c, s.qk_dim), a) for n, c in (("q", s.heads), ("k", s.kv_heads)))
        v = heads("v", s.kv_heads, s.v_dim)
    return {
        "residual": total,
        "q": (q * s.scale).transpose(1, 0, 2).reshape(s.kv_heads, s.share * rows, s.qk_dim),
        "k": k.transpose(1, 2, 0),
        "v": v.transpose(1, 0, 2),
    }


def attention(shape: AttentionShapes, q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Weighted values [kv_heads, share * rows, v_dim] over all keys: k [kv_heads, qk_dim, keys], ``visible`` [rows, keys]."""
    scores = q.astype(np.float64) @ k
    scores = np.where(np.tile(visible, (shape.share, 1))[None], scores, -np.inf)
    return softmax(scores) @ v.astype(np.float64)


def start(shape: AttentionShapes) -> Arrays:
    """The state of a running softmax that has seen nothing."""
    rows = (shape.kv_heads, shape.share * shape.chunk)
    return {
        ROW_MAX: np.full((*rows, 1), LOWEST, np.float16),
        ROW_SUM: np.zeros((*rows, 1), np.float16),
        ACCUMULATOR: np.zeros((*rows, shape.v_dim), np.float16),
    }


def output(spec: GraphSpec, shapes: NpuShapes, a: Arrays) -> np.ndarray:
    s = shapes.attention
    rows = a[ACCUMULATOR].astype(np.float64).reshape(s.heads, s.chunk, s.v_dim).transpose(1, 0, 2).reshape(s.chunk, -1)
    return a["high"].astype(np.float64) + a["low"] + rows @ matrix(spec, a, "o")


def head(spec: GraphSpec, shapes: NpuShapes, a: Arrays) -> np.ndarray:
    total = (a["high"].astype(np.float64) + a["low"] + a["delta"]).astype(np.float16)
    return rms_norm(total, a["final_norm"], shapes.norm_eps) @ matrix(spec, a, "head")


def best_experts(routing: RoutingShapes, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Softmax [rows, experts], zero outside of the best groups, and the ids of the best experts [rows, top_k]."""
    scores = softmax(logits)
    if routing.n_group > 1:
        grouped = scores.reshape(len(scores), routing.n_group, -1)
        best = np.argsort(-grouped.max(-1), 1)[:, : routing.topk_group]
        allowed = np.zeros(grouped.shape[:2])
        np.put_along_axis(allowed, best, 1.0, 1)
        scores = (grouped * allowed[..., None]).reshape(scores.shape)
    return scores, np.argsort(-scores, 1)[:, : routing.top_k]
