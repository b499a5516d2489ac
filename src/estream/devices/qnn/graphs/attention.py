"""Attention: projections with rotation, a running softmax over chunks of keys, and the output projection."""

import numpy as np

from estream.devices.qnn.graphs.builder import GraphBuilder
from estream.devices.qnn.graphs.parts import add_to_residual, exponential, product, rms_norm
from estream.package.npu.graph_specs import ACCUMULATOR, HEADROOM, LOWEST, ROW_MAX, ROW_SUM
from estream.package.npu.shapes import AttentionShapes, NpuShapes

#: The most query rows, of all heads together, in one part. With 128 keys the scores of a part take half a MiB.
_LARGEST_ROWS = 2048
_STATE = (ROW_MAX, ROW_SUM, ACCUMULATOR)


def qkv(g: GraphBuilder, shapes: NpuShapes) -> None:
    a = shapes.attention
    total, _ = add_to_residual(g, "delta", to=("high_out", "low_out"))
    x = rms_norm(g, total, "input_norm", shapes.norm_eps)
    queries, keys, values = _latent(g, a, x) if a.kv_lora_rank else _grouped(g, a, x, shapes.norm_eps)
    g.reshape(g.op("Mul", queries, g.half(a.scale)), a.kv_heads, a.share * a.chunk, a.qk_dim, to="q")
    g.op("Transpose", keys, to="k", perm=[0, 2, 1])
    g.op("Transpose", values, to="v", perm=[1, 0, 2])


def _grouped(g: GraphBuilder, a: AttentionShapes, x: str, eps: float) -> tuple[str, str, str]:
    """Rotated queries [heads, chunk, qk_dim] and keys, and values [chunk, kv_heads, v_dim]."""
    rotated = []
    for name, heads in (("q", a.heads), ("k", a.kv_heads)):
        y = _biased(g, a, product(g, x, name), name)
        if a.qk_norm == "projection":
            y = rms_norm(g, y, f"{name}_norm", eps)
        if a.qk_norm == "head":
            y = rms_norm(g, g.reshape(y, a.chunk * heads, a.qk_dim), f"{name}_norm", eps)
        y = g.reshape(y, a.chunk, heads, a.qk_dim)
        rotated.append(_rotate(g, a, g.op("Transpose", _clipped(g, a, y), perm=[1, 0, 2]), a.qk_dim))
    values = _clipped(g, a, _biased(g, a, product(g, x, "v"), "v"))
    return rotated[0], rotated[1], g.reshape(values, a.chunk, a.kv_heads, a.v_dim)


def _latent(g: GraphBuilder, a: AttentionShapes, x: str) -> tuple[str, str, str]:
    """The same, made from latent values. Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1."""
    plain = a.qk_dim - a.rotated
    if a.q_lora_rank:
        queries = product(g, rms_norm(g, product(g, x, "q_a"), "q_a_norm", a.latent_eps), "q")
    else:
        queries = product(g, x, "q")
    queries = g.op("Transpose", g.reshape(queries, a.chunk, a.heads, a.qk_dim), perm=[1, 0, 2])
    latent = rms_norm(g, product(g, x, "kv_a"), "kv_a_norm", a.latent_eps)
    shared = _rotate(g, a, g.reshape(product(g, x, "k_rope"), 1, a.chunk, a.rotated), a.rotated)
    keys = g.op("Transpose", g.reshape(product(g, latent, "k"), a.chunk, a.heads, plain), perm=[1, 0, 2])
    keys = g.op("Concat", g.op("Tile", shared, g.shape(a.heads, 1, 1)), keys, axis=2)
    return _rotate(g, a, queries, a.qk_dim), keys, g.reshape(product(g, latent, "v"), a.chunk, a.heads, a.v_dim)


def _biased(g: GraphBuilder, a: AttentionShapes, x: str, name: str) -> str:
    return g.op("Add", x, f"{name}_bias") if a.bias else x


def _clipped(g: GraphBuilder, a: AttentionShapes, x: str) -> str:
    return g.op("Max", g.op("Min", x, g.half(a.clip)), g.half(-a.clip)) if a.clip else x


def _rotate(g: GraphBuilder, a: AttentionShapes, x: str, size: int) -> str:
    """Rotate the first values of each head [heads, chunk, size], value i with value i + rotated / 2."""
    half = a.rotated // 2
    first, second, *rest = g.split(x, half, half, *([size - a.rotated] if size > a.rotated else []))
    turned = (
        g.op("Sub", g.op("Mul", first, "cosine"), g.op("Mul", second, "sine")),
        g.op("Add", g.op("Mul", second, "cosine"), g.op("Mul", first, "sine")),
    )
    return g.op("Concat", *turned, *rest, axis=2)


def attend(g: GraphBuilder, shapes: NpuShapes) -> None:
    """The softmax of one chunk of keys, merged with that of the chunks before.

    Each chunk has a ``row_max``, a ``row_sum`` of exp(score - row_max - HEADROOM), and values weighted by these over their
    sum. The accumulator moves towards the chunk's values by the chunk's share of ``row_sum``. So it stays normalised, and does
    not grow with the number of keys. Source: M. Milakov and N. Gimelshein, Online normalizer calculation for softmax (arXiv
    1805.02867). Where a row sees no key of a chunk, the chunk's ``row_max`` is LOWEST, and its share vanishes beside that of
    any other. Written out, since the backend's Softmax is off by 0.14 %.
    """
    a = shapes.attention
    places = g.integers(np.arange(a.chunk)[None])
    visible = g.op("And", g.op("GreaterOrEqual", places, "first"), g.op("Less", places, "end"))
    count = _parts(a)
    inputs = [_heads(g, a, name, count) for name in ("q", "k", "v", *_STATE)]
    parts = [_attend(g, a, visible, *tensors) for tensors in zip(*inputs, strict=True)]
    for name, tensors in zip(_STATE, zip(*parts, strict=True), strict=True):
        g.op("Concat", *tensors, to=f"{name}_out", axis=0)


def _parts(a: AttentionShapes) -> int:
    """The number of parts that heads are cut into. The scores of one part fit into the NPU's memory."""
    return next(n for n in range(1, a.kv_heads + 1) if a.kv_heads % n == 0 and a.heads // n * a.chunk <= _LARGEST_ROWS)


def _heads(g: GraphBuilder, a: AttentionShapes, name: str, parts: int) -> list[str]:
    return g.ops("Split", name, g.shape(*[a.kv_heads // parts] * parts), to=[""] * parts, axis=0) if parts > 1 else [name]


def _attend(g: GraphBuilder, a: AttentionShapes, visible: str, *tensors: str) -> tuple[str, str, str]:
    q, k, v, old_max, old_sum, old_accumulator = tensors
    kv_heads = a.kv_heads // _parts(a)
    scores = g.reshape(g.op("MatMul", q, k), kv_heads, a.share, a.chunk, a.chunk)
    scores = g.reshape(g.op("Where", visible, scores, g.half(LOWEST)), kv_heads, a.share * a.chunk, a.chunk)
    chunk_max = g.op("ReduceMax", scores, g.shape(2), keepdims=1)
    weights = exponential(g, g.op("Sub", scores, g.op("Add", chunk_max, g.half(HEADROOM))))
    chunk_sum = g.op("ReduceSum", weights, g.shape(2), keepdims=1)
    chunk_accumulator = g.op("Div", g.op("MatMul", weights, v), chunk_sum)
    row_max = g.op("Max", old_max, chunk_max)
    before = g.op("Mul", old_sum, exponential(g, g.op("Sub", old_max, row_max)))
    added = g.op("Mul", chunk_sum, exponential(g, g.op("Sub", chunk_max, row_max)))
    row_sum = g.op("Add", before, added)
    change = g.op("Mul", g.op("Sub", chunk_accumulator, old_accumulator), g.op("Div", added, row_sum))
    return row_max, row_sum, g.op("Add", old_accumulator, change)


def output(g: GraphBuilder, shapes: NpuShapes) -> None:
    a = shapes.attention
    heads = g.reshape(ACCUMULATOR, a.heads, a.chunk, a.v_dim)
    rows = g.reshape(g.op("Transpose", heads, perm=[1, 0, 2]), a.chunk, a.heads * a.v_dim)
    add_to_residual(g, product(g, rows, "o"), to=("high_out", "low_out"))
