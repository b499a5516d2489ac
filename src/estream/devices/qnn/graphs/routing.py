"""Routing: choose experts, sort slots by expert, gather rows, and add results to the rows that they belong to."""

import numpy as np

from estream.devices.qnn.graphs.builder import GraphBuilder
from estream.devices.qnn.graphs.parts import exponential, rms_norm, times_sigmoid
from estream.package.npu.shapes import NpuShapes, RoutingShapes


def route(g: GraphBuilder, shapes: NpuShapes) -> None:
    r = shapes.routing
    normed = rms_norm(g, "high", "post_norm", shapes.norm_eps, to="normed")
    logits = g.op("Add", g.op("MatMul", normed, "router_high"), g.op("MatMul", normed, "router_low"))
    if r.shared_gate:
        times_sigmoid(g, g.half(1.0), g.op("MatMul", normed, "shared_gate"), to="shared_weights")
    # Exponentials, which are divided once. The backend's Softmax is off by 0.14 %.
    scores = exponential(g, g.op("Sub", logits, g.op("ReduceMax", logits, g.shape(1), keepdims=1)))
    best, chosen = g.ops("TopK", _within_groups(g, r, scores), g.shape(r.top_k), to=("", ""), axis=-1)
    total = g.op("ReduceSum", best if r.norm_topk_prob else scores, g.shape(1), keepdims=1)
    weights = g.op("Mul", g.op("Div", best, total), g.half(r.routed_scaling_factor), to="weights")
    real = g.op("Less", g.integers(np.arange(r.tokens)[:, None]), "count")
    ids = g.op("Where", real, g.cast(chosen, "int32"), g.integers(r.experts), to="ids")
    _sort(g, r, ids, weights)


def _within_groups(g: GraphBuilder, r: RoutingShapes, scores: str) -> str:
    """Scores, zero for experts outside of the best groups. Source: DeepSeek-V2 (arXiv 2405.04434), section 2.2.2."""
    if r.n_group == 1:
        return scores
    grouped = g.reshape(scores, r.tokens, r.n_group, r.experts // r.n_group)
    best = g.op("ReduceMax", grouped, g.shape(2), keepdims=0)
    _, chosen = g.ops("TopK", best, g.shape(r.topk_group), to=("", ""), axis=-1)
    chosen = g.reshape(g.cast(chosen, "int32"), r.tokens, r.topk_group, 1)
    hits = g.cast(g.op("Equal", chosen, g.integers(np.arange(r.n_group)[None, None])), "float16")
    allowed = g.reshape(g.op("ReduceSum", hits, g.shape(1), keepdims=0), r.tokens, r.n_group, 1)
    return g.reshape(g.op("Mul", grouped, allowed), r.tokens, r.experts)


def _sort(g: GraphBuilder, r: RoutingShapes, ids: str, weights: str) -> None:
    """Slots by expert, and within an expert by token. TopK does not keep the order of equal keys, so no two keys are equal."""
    slots = g.integers(np.arange(r.slots)[None])
    keys = g.op("Add", g.op("Mul", g.reshape(ids, 1, r.slots), g.integers(r.slots)), slots)
    _, order = g.ops("TopK", keys, g.shape(r.slots), to=("", ""), axis=-1, largest=0)
    order = g.reshape(g.cast(order, "int32"), r.slots)
    g.op("Div", order, g.integers(r.top_k), to="tokens")
    g.op("Gather", g.reshape(weights, r.slots, 1), order, to="slot_weights", axis=0)
    hits = g.op("Equal", g.reshape(ids, r.slots, 1), g.integers(np.arange(r.experts)[None]))
    g.op("ReduceSum", g.cast(hits, "int32"), g.shape(0), to="counts", keepdims=0)


def gather(g: GraphBuilder, shapes: NpuShapes) -> None:  # noqa: ARG001 - graphs are filled alike
    g.op("Gather", "normed", "tokens", to="rows", axis=0)


def combine(g: GraphBuilder, shapes: NpuShapes) -> None:
    window = shapes.routing.window
    real = g.op("Less", g.integers(np.arange(window)[:, None]), "count")
    rows = g.op("Where", real, "rows", g.half(0.0))
    places = g.reshape(g.cast("tokens", "int64"), window, 1)
    g.op("ScatterND", "delta", places, rows, to="delta_out", reduction="add")
