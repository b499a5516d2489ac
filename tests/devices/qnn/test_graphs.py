"""Every graph of the NPU against NumPy in double precision, on the emulator. Its bars are relative RMS errors."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the extra 'qnn'")

import qnn_reference as reference
from qnn_tiny import ATTENTION, CHUNK, HIDDEN, LATENT, ROUTING, SHAPES, Bound, mlp_inputs, normal, relative_rms, run

from estream.package.npu import graph_specs
from estream.package.npu.graph_specs import ACCUMULATOR, ROW_MAX, ROW_SUM
from estream.package.npu.shapes import NpuShapes, RoutingShapes

#: What fp16 products and the backend's division cost; measured 3e-4 to 7e-4.
PRODUCTS = 1e-3
#: Scores are rounded to fp16 before the exponential: measured 1.5e-3 to 1.9e-3 with scores up to 10.
SOFTMAX = 2.5e-3
STATE = (ROW_MAX, ROW_SUM, ACCUMULATOR)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def qkv_inputs(spec: graph_specs.GraphSpec, shapes: NpuShapes, rng: np.random.Generator) -> reference.Arrays:
    angles = np.arange(CHUNK)[:, None] * 0.7 ** np.arange(shapes.attention.rotated // 2)
    residual = {
        "high": normal(rng, CHUNK, HIDDEN),
        "low": normal(rng, CHUNK, HIDDEN, size=1e-4),
        "delta": normal(rng, CHUNK, HIDDEN),
    }
    angle = {"cosine": np.cos(angles).astype(np.float16), "sine": np.sin(angles).astype(np.float16)}
    return reference.random_weights(spec, rng) | residual | angle


@pytest.mark.parametrize(("part", "rows"), [("expert", 16), ("expert", 64), ("shared", 64)])
def test_mlp(part, rows, rng):
    spec = graph_specs.mlp(SHAPES, getattr(SHAPES, part), rows)
    inputs = mlp_inputs(spec, rng)
    assert relative_rms(run(spec, SHAPES, inputs)["sums_out"], reference.mlp(spec, inputs)["sums_out"]) < PRODUCTS


def test_outliers_survive_an_mlp_and_leave_other_rows_alone(rng):
    spec = graph_specs.mlp(SHAPES, SHAPES.expert, 16)
    inputs = mlp_inputs(spec, rng)
    inputs["x"][3, 7], inputs["x"][5, 9] = 600, -600
    found, wanted = run(spec, SHAPES, inputs)["sums_out"], reference.mlp(spec, inputs)["sums_out"]
    for row in range(16):
        assert relative_rms(found[row], wanted[row]) < 2 * PRODUCTS


def test_new_weights_need_no_new_bind(rng):
    """One session serves every expert: their weights are read to where the last one's lay."""
    spec = graph_specs.mlp(SHAPES, SHAPES.expert, 16)
    inputs = mlp_inputs(spec, rng)
    bound = Bound(spec, SHAPES, inputs)
    for _ in range(3):
        expert = reference.random_weights(spec, rng)
        wanted = reference.mlp(spec, inputs | expert)["sums_out"]
        assert relative_rms(bound.run(**expert)["sums_out"], wanted) < PRODUCTS


def test_a_row_does_not_depend_on_the_tile(rng):
    """Bit for bit: so covering an expert's rows by other tiles, or beside other rows, changes no answer."""
    large = graph_specs.mlp(SHAPES, SHAPES.expert, 64)
    inputs = mlp_inputs(large, rng)
    wanted = run(large, SHAPES, inputs)["sums_out"]
    small = graph_specs.mlp(SHAPES, SHAPES.expert, 16)
    for first in range(0, 64, 16):
        part = {name: inputs[name][first : first + 16] for name in ("x", "weights", "sums")}
        np.testing.assert_array_equal(run(small, SHAPES, inputs | part)["sums_out"], wanted[first : first + 16])


def test_many_slices_add_up(rng):
    """As many as Mixtral's experts have, each rounded to fp16 once more."""
    spec = graph_specs.mlp(SHAPES, SHAPES.expert, 16)
    inputs = mlp_inputs(spec, rng) | {"sums": np.zeros((16, HIDDEN), np.float16)}
    bound, wanted, sums = Bound(spec, SHAPES, inputs), np.zeros((16, HIDDEN)), inputs["sums"]
    for _ in range(56):
        weights = reference.random_weights(spec, rng)
        wanted = reference.mlp(spec, inputs | weights | {"sums": wanted})["sums_out"]
        sums = bound.run(**weights, sums=sums)["sums_out"]
    assert relative_rms(sums, wanted) < 2 * PRODUCTS


VARIANTS = {
    "grouped": ATTENTION,
    "projection norm": replace(ATTENTION, qk_norm="projection"),
    "head norm, part rotated, biases, clipped": replace(ATTENTION, qk_norm="head", rotated=16, bias=True, clip=2.0),
    "latent": LATENT,
    "latent queries": replace(LATENT, q_lora_rank=96),
}


@pytest.mark.parametrize("attention", VARIANTS.values(), ids=VARIANTS.keys())
def test_queries_keys_and_values(attention, rng):
    shapes = replace(SHAPES, attention=attention)
    spec = graph_specs.qkv(shapes)
    inputs = qkv_inputs(spec, shapes, rng)
    inputs["high"][3, 5], inputs["high"][7, 9] = 600, -600
    found, wanted = run(spec, shapes, inputs), reference.qkv(spec, shapes, inputs)
    for name in ("q", "k", "v"):
        assert relative_rms(found[name], wanted[name]) < PRODUCTS


def test_small_changes_add_up_beside_large_values(rng):
    """A residual of 600 has a spacing of 0.5 in fp16; as two values it follows 40 layers that each add some hundredths."""
    spec = graph_specs.qkv(SHAPES)
    inputs = qkv_inputs(spec, SHAPES, rng)
    inputs["high"] += np.float16(600)
    wanted = inputs["high"].astype(np.float64) + inputs["low"]
    bound, high, low = Bound(spec, SHAPES, inputs), inputs["high"], inputs["low"]
    for _ in range(40):
        delta = normal(rng, CHUNK, HIDDEN, size=0.05)
        wanted += delta
        found = bound.run(high=high, low=low, delta=delta)
        high, low = found["high_out"], found["low_out"]
    assert np.abs(high.astype(np.float64) + low - wanted).max() < 2e-3


CUT = replace(ATTENTION, heads=36, kv_heads=4, qk_dim=16, rotated=16, v_dim=16)


@pytest.mark.parametrize("attention", [ATTENTION, LATENT, CUT], ids=["grouped", "latent", "cut by heads"])
def test_attention_over_chunks_of_keys(attention, rng):
    """A running softmax over three chunks is the softmax over all: with a window, and rows that see nothing of a chunk."""
    shapes = replace(SHAPES, attention=attention)
    spec = graph_specs.attend(attention)
    keys = normal(rng, 3, attention.kv_heads, attention.qk_dim, CHUNK)
    values = normal(rng, 3, attention.kv_heads, CHUNK, attention.v_dim)
    queries = normal(rng, attention.kv_heads, attention.share * CHUNK, attention.qk_dim, size=0.4)
    visible = np.zeros((CHUNK, 3 * CHUNK), bool)
    for row in range(CHUNK):
        visible[row, 70 if row % 5 else 3 : 2 * CHUNK + row + 1] = True
    state = reference.start(attention) | {"q": queries}
    bound = Bound(spec, shapes, state | {"k": keys[0], "v": values[0]} | bounds(visible[:, :CHUNK]))
    for chunk in range(3):
        seen = bounds(visible[:, chunk * CHUNK : (chunk + 1) * CHUNK])
        found = bound.run(k=keys[chunk], v=values[chunk], **seen, **{n: state[n] for n in STATE})
        state = {name.removesuffix("_out"): array for name, array in found.items()}
    wanted = reference.attention(attention, queries, np.concatenate(keys, -1), np.concatenate(values, 1), visible)
    assert relative_rms(state[ACCUMULATOR], wanted) < SOFTMAX


def bounds(visible: np.ndarray) -> reference.Arrays:
    """The inputs ``first`` and ``end`` of a chunk of keys of which each row sees a run."""
    first = np.argmax(visible, axis=1).astype(np.int32)[:, None]
    return {"first": first, "end": first + visible.sum(1, dtype=np.int32)[:, None]}


def test_attention_keeps_the_row_sum_of_long_prompts(rng):
    """After 80,000 equal keys fp16 would hold no more of their number, were it not scaled."""
    spec = graph_specs.attend(ATTENTION)
    value = normal(rng, ATTENTION.kv_heads, CHUNK, ATTENTION.v_dim)
    state = reference.start(ATTENTION)
    state[ROW_MAX][...], state[ROW_SUM][...] = 0.0, 80_000 * np.exp(-graph_specs.HEADROOM)
    state[ACCUMULATOR][...] = 1.0
    arrays = state | {"q": np.zeros(spec.input("q").shape, np.float16), "k": np.zeros(spec.input("k").shape, np.float16)}
    found = run(spec, SHAPES, arrays | {"v": value} | bounds(np.ones((CHUNK, CHUNK), bool)))
    wanted = (80_000 + value.astype(np.float64).sum(1, keepdims=True)) / (80_000 + CHUNK)
    assert relative_rms(found[f"{ACCUMULATOR}_out"], np.broadcast_to(wanted, found[f"{ACCUMULATOR}_out"].shape)) < PRODUCTS


def test_output_projection(rng):
    spec = graph_specs.output(SHAPES)
    arrays = reference.random_weights(spec, rng) | {ACCUMULATOR: normal(rng, *spec.input(ACCUMULATOR).shape)}
    arrays |= {"high": normal(rng, CHUNK, HIDDEN, size=100), "low": normal(rng, CHUNK, HIDDEN, size=1e-2)}
    found = run(spec, SHAPES, arrays)
    before = arrays["high"].astype(np.float64) + arrays["low"]
    added = found["high_out"].astype(np.float64) + found["low_out"] - before
    assert relative_rms(added, reference.output(spec, SHAPES, arrays) - before) < PRODUCTS


ROUTINGS = {
    "normalised": ROUTING,
    "from groups, scaled": RoutingShapes(16, 3, 64, 64, False, routed_scaling_factor=2.5, n_group=4, topk_group=2),
}


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS.keys())
def test_routing(routing, rng):
    shapes, real = replace(SHAPES, routing=routing), 50
    spec = graph_specs.route(shapes)
    router = (rng.standard_normal((HIDDEN, routing.experts)) / 8).astype(np.float32)
    high = router.astype(np.float16)
    arrays = reference.random_weights(spec, rng) | {"router_high": high, "router_low": (router - high).astype(np.float16)}
    arrays |= {"high": normal(rng, routing.tokens, HIDDEN, size=5), "count": np.array([[real]], np.int32)}
    arrays["high"][2, 3] = 600
    found = run(spec, shapes, arrays)
    normed = reference.rms_norm(arrays["high"], arrays["post_norm"], shapes.norm_eps)
    assert relative_rms(found["normed"], normed) < PRODUCTS
    scores, ids = reference.best_experts(routing, normed @ router)
    np.testing.assert_array_equal(found["ids"][:real], ids[:real])
    weights = np.take_along_axis(scores, ids, 1)
    weights = routing.routed_scaling_factor * (weights / weights.sum(1, keepdims=True) if routing.norm_topk_prob else weights)
    # Logits are rounded to fp16 before the exponential.
    assert relative_rms(found["weights"][:real], weights[:real]) < SOFTMAX
    if routing.shared_gate:
        gate = 1 / (1 + np.exp(-(normed @ arrays["shared_gate"].astype(np.float64))))
        assert relative_rms(found["shared_weights"], gate) < PRODUCTS
    check_sorted(routing, real, found)


def check_sorted(routing: RoutingShapes, real: int, found: reference.Arrays) -> None:
    assert (found["ids"][real:] == routing.experts).all()
    flat = found["ids"].reshape(-1)
    order = np.argsort(flat, kind="stable")
    np.testing.assert_array_equal(found["tokens"], order // routing.top_k)
    np.testing.assert_array_equal(found["slot_weights"][:, 0], found["weights"].reshape(-1)[order])
    np.testing.assert_array_equal(found["counts"], np.bincount(flat, minlength=routing.experts + 1)[:-1])


def test_gather_and_combine(rng):
    tokens = rng.integers(0, ROUTING.tokens, ROUTING.window).astype(np.int32)
    normed, delta, rows = (normal(rng, ROUTING.tokens, HIDDEN) for _ in range(3))
    found = run(graph_specs.gather(SHAPES), SHAPES, {"normed": normed, "tokens": tokens})
    np.testing.assert_array_equal(found["rows"], normed[tokens])
    rows[40:] = np.nan
    arrays = {"delta": delta, "rows": rows, "tokens": tokens, "count": np.array([[40]], np.int32)}
    wanted = delta.astype(np.float64)
    np.add.at(wanted, tokens[:40], rows[:40].astype(np.float64))
    assert relative_rms(run(graph_specs.combine(SHAPES), SHAPES, arrays)["delta_out"], wanted) < PRODUCTS


def test_head(rng):
    spec = graph_specs.head(SHAPES)
    arrays = reference.random_weights(spec, rng) | {"high": normal(rng, 16, HIDDEN, size=100)}
    arrays |= {"low": normal(rng, 16, HIDDEN, size=1e-2), "delta": normal(rng, 16, HIDDEN)}
    assert relative_rms(run(spec, SHAPES, arrays)["logits"], reference.head(spec, SHAPES, arrays)) < PRODUCTS
