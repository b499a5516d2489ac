"""The graphs of a model on the NPU: their names, and the names, types and shapes of all inputs and outputs.

Shapes are static on this device, and weights are run-time inputs. So the same few graphs serve every layer and expert.
docs/npu-graphs.md tells what each computes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from estream.package.npu.matrices import MatrixSpec
from estream.package.npu.shapes import AttentionShapes, MlpShapes, NpuShapes, blocked

DType = Literal["float16", "uint8", "int32"]
GraphKind = Literal["qkv", "attend", "output", "route", "gather", "combine", "mlp", "head"]

#: The tensors that hold the state of a running softmax: for each row the largest score, the sum of the exponentials, and the
#: weighted values over that sum. Packages know compiled graphs by a digest that covers these names, so they stay.
ROW_MAX, ROW_SUM, ACCUMULATOR = "peak", "mass", "mean"
#: Where ``row_max`` starts: below any score, and far enough from fp16's end to subtract from.
LOWEST = -30000.0
#: Exponentials are of a score less ``row_max`` less this. So fp16 holds ``row_sum`` of a million keys, and a chunk's weights
#: times values up to 4,000. A multiple of a power of two: adding it does not round.
HEADROOM = 2.75


@dataclass(frozen=True)
class TensorSpec:
    """One input or output, in C order. A ``weight`` belongs to a layer and lies in a page."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    weight: bool = False

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class GraphSpec:
    """One compiled graph. A call computes ``rows`` rows (tokens, slots). ``bits`` are those of an MLP's weights."""

    kind: GraphKind
    name: str
    rows: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    matrices: tuple[MatrixSpec, ...] = ()
    bits: int = 0

    @property
    def weights(self) -> tuple[TensorSpec, ...]:
        """The inputs that a page holds, in the page's order."""
        return tuple(tensor for tensor in self.inputs if tensor.weight)

    def input(self, name: str) -> TensorSpec:
        return next(tensor for tensor in self.inputs if tensor.name == name)

    def output(self, name: str) -> TensorSpec:
        return next(tensor for tensor in self.outputs if tensor.name == name)

    def matrix(self, name: str) -> MatrixSpec:
        return next(matrix for matrix in self.matrices if matrix.name == name)


def graph_specs(shapes: NpuShapes) -> tuple[GraphSpec, ...]:
    """All graphs of a model, those of MLPs from the fewest rows up.

    Raises:
        OptionError: a matrix cannot be cut into whole groups.

    """
    specs = [qkv(shapes), attend(shapes.attention), output(shapes), route(shapes), gather(shapes), combine(shapes)]
    specs += [mlp(shapes, shapes.expert, rows) for rows in shapes.expert.tiles]
    if shapes.shared is not None and (shapes.shared.bits, shapes.shared.slice_width) != (
        shapes.expert.bits,
        shapes.expert.slice_width,
    ):
        specs += [mlp(shapes, shapes.shared, rows) for rows in shapes.shared.tiles]
    return (*specs, head(shapes))


def qkv(shapes: NpuShapes) -> GraphSpec:
    """Residual += delta, then its norm, and from that queries, keys and values of a chunk: rotated, the queries scaled."""
    a, rows, hidden = shapes.attention, shapes.attention.chunk, shapes.hidden
    matrices = a.latent_matrices(hidden) if a.kv_lora_rank else a.grouped_matrices(hidden)
    norms = [_vector("input_norm", hidden)]
    if a.kv_lora_rank:
        norms += ([_vector("q_a_norm", a.q_lora_rank)] if a.q_lora_rank else []) + [_vector("kv_a_norm", a.kv_lora_rank)]
    elif a.qk_norm != "none":
        whole = a.qk_norm == "projection"
        norms += [_vector("q_norm", a.query_width if whole else a.qk_dim)]
        norms += [_vector("k_norm", a.key_width if whole else a.qk_dim)]
    if a.bias:
        widths = (("q", a.query_width), ("k", a.key_width), ("v", a.value_width))
        norms += [_vector(f"{name}_bias", width) for name, width in widths]
    return GraphSpec(
        kind="qkv",
        name=f"qkv{rows}",
        rows=rows,
        inputs=(
            *(_halves(name, rows, hidden) for name in ("high", "low", "delta")),
            _halves("cosine", rows, a.rotated // 2),
            _halves("sine", rows, a.rotated // 2),
            *norms,
            *_weights(matrices),
        ),
        outputs=(
            _halves("high_out", rows, hidden),
            _halves("low_out", rows, hidden),
            _halves("q", a.kv_heads, a.share * rows, a.qk_dim),
            _halves("k", a.kv_heads, a.qk_dim, rows),
            _halves("v", a.kv_heads, rows, a.v_dim),
        ),
        matrices=matrices,
    )


def attend(a: AttentionShapes) -> GraphSpec:
    """Attention of one chunk of queries over one chunk of keys, continuing a running softmax."""
    rows, keys = a.share * a.chunk, a.chunk
    state = [(ROW_MAX, 1), (ROW_SUM, 1), (ACCUMULATOR, a.v_dim)]
    return GraphSpec(
        kind="attend",
        name=f"attend{a.chunk}",
        rows=a.chunk,
        inputs=(
            _halves("q", a.kv_heads, rows, a.qk_dim),
            _halves("k", a.kv_heads, a.qk_dim, keys),
            _halves("v", a.kv_heads, keys, a.v_dim),
            TensorSpec("first", "int32", (a.chunk, 1)),
            TensorSpec("end", "int32", (a.chunk, 1)),
            *(_halves(name, a.kv_heads, rows, width) for name, width in state),
        ),
        outputs=tuple(_halves(f"{name}_out", a.kv_heads, rows, width) for name, width in state),
    )


def output(shapes: NpuShapes) -> GraphSpec:
    """Residual += attention's output projection."""
    a, hidden = shapes.attention, shapes.hidden
    matrices = (a.matrix("o", a.heads * a.v_dim, hidden),)
    return GraphSpec(
        kind="output",
        name=f"output{a.chunk}",
        rows=a.chunk,
        inputs=(
            _halves(ACCUMULATOR, a.kv_heads, a.share * a.chunk, a.v_dim),
            _halves("high", a.chunk, hidden),
            _halves("low", a.chunk, hidden),
            *_weights(matrices),
        ),
        outputs=(_halves("high_out", a.chunk, hidden), _halves("low_out", a.chunk, hidden)),
        matrices=matrices,
    )


def route(shapes: NpuShapes) -> GraphSpec:
    """Norm, logits, the best experts of each row and their weights; slots sorted by expert, and counted."""
    r, hidden = shapes.routing, shapes.hidden
    shared_gate = (_halves("shared_gate", hidden, 1, weight=True),) if r.shared_gate else ()
    return GraphSpec(
        kind="route",
        name=f"route{r.tokens}",
        rows=r.tokens,
        inputs=(
            _halves("high", r.tokens, hidden),
            TensorSpec("count", "int32", (1, 1)),
            _vector("post_norm", hidden),
            _halves("router_high", hidden, r.experts, weight=True),
            _halves("router_low", hidden, r.experts, weight=True),
            *shared_gate,
        ),
        outputs=(
            _halves("normed", r.tokens, hidden),
            TensorSpec("ids", "int32", (r.tokens, r.top_k)),
            _halves("weights", r.tokens, r.top_k),
            TensorSpec("tokens", "int32", (r.slots,)),
            _halves("slot_weights", r.slots, 1),
            TensorSpec("counts", "int32", (r.experts,)),
            *((_halves("shared_weights", r.tokens, 1),) if r.shared_gate else ()),
        ),
    )


def gather(shapes: NpuShapes) -> GraphSpec:
    """The rows of a window of slots."""
    r = shapes.routing
    inputs = (_halves("normed", r.tokens, shapes.hidden), TensorSpec("tokens", "int32", (r.window,)))
    return GraphSpec("gather", f"gather{r.window}", r.window, inputs, (_halves("rows", r.window, shapes.hidden),))


def combine(shapes: NpuShapes) -> GraphSpec:
    """delta[tokens] += the first ``count`` rows of a window of slots."""
    r, hidden = shapes.routing, shapes.hidden
    inputs = (
        _halves("delta", r.tokens, hidden),
        _halves("rows", r.window, hidden),
        TensorSpec("tokens", "int32", (r.window,)),
        TensorSpec("count", "int32", (1, 1)),
    )
    return GraphSpec("combine", f"combine{r.window}", r.window, inputs, (_halves("delta_out", r.tokens, hidden),))


def mlp(shapes: NpuShapes, part: MlpShapes, rows: int) -> GraphSpec:
    """Sums + weights * (silu(x gate) * (x up)) down, for one slice of the intermediate values of one expert."""
    hidden = shapes.hidden
    matrices = part.matrices(hidden)
    return GraphSpec(
        kind="mlp",
        name=f"mlp{part.bits}w{part.slice_width}x{rows}",
        rows=rows,
        inputs=(
            _halves("x", rows, hidden),
            _halves("weights", rows, 1),
            _halves("sums", rows, hidden),
            *_weights(matrices),
        ),
        outputs=(_halves("sums_out", rows, hidden),),
        matrices=matrices,
        bits=part.bits,
    )


def head(shapes: NpuShapes) -> GraphSpec:
    """Final norm, and the logits of a slice of the vocabulary."""
    h, hidden = shapes.head, shapes.hidden
    matrices = (blocked("head", hidden, h.vocabulary, h.bits, h.group),)
    inputs = (
        *(_halves(name, h.rows, hidden) for name in ("high", "low", "delta")),
        TensorSpec("final_norm", "float16", (hidden,)),
        *_weights(matrices),
    )
    return GraphSpec("head", f"head{h.rows}", h.rows, inputs, (_halves("logits", h.rows, h.vocabulary),), matrices)


def _halves(name: str, *shape: int, weight: bool = False) -> TensorSpec:
    return TensorSpec(name, "float16", shape, weight)


def _vector(name: str, size: int) -> TensorSpec:
    return TensorSpec(name, "float16", (size,), weight=True)


def _weights(matrices: Iterable[MatrixSpec]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, dtype, shape, True) for matrix in matrices for name, dtype, shape in matrix.parts())
