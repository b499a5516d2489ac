"""Parts that several graphs share: products with packed matrices, norms, and sums without loss."""

from estream.devices.qnn.graphs.builder import GraphBuilder
from estream.package.npu.matrices import MatrixSpec

#: Of whole numbers, 11 is the largest whose exponential fp16 holds. The exponential of -20 is zero in fp16.
_LARGEST_EXPONENT = 11.0
_VANISHING = 20.0


def product(g: GraphBuilder, x: str, name: str, to: str = "") -> str:
    """``x`` [rows, inputs] times a packed matrix (package/npu/matrices.py), which the graph unpacks."""
    m = g.spec.matrix(name)
    block = _product8 if m.bits == 8 else _product4
    if m.blocks == 1:
        return block(g, x, m, name, to)
    return g.op("Concat", *(block(g, x, m, part, "") for part in m.block_names), to=to, axis=1)


def _product8(g: GraphBuilder, x: str, m: MatrixSpec, name: str, to: str) -> str:
    codes = g.op("DequantizeLinear", f"{name}_codes", g.half(1.0), g.octets(128))
    return g.op("MatMul", x, g.reshape(g.op("Mul", codes, f"{name}_scales"), m.inputs, m.block_outputs), to=to)


def _product4(g: GraphBuilder, x: str, m: MatrixSpec, name: str, to: str) -> str:
    half = m.inputs // 2
    both = g.op("DequantizeLinear", f"{name}_codes", g.half(1 / 16), g.octets(128))
    high = g.op("Floor", both)
    low = g.op("Sub", g.op("Sub", both, high), g.half(0.5))
    x_low, x_high = g.split(x, half, half)
    parts = []
    # Two products of half the inputs move fewer bytes than one product of the halves put together.
    for rows, codes, scales in ((x_low, low, "low"), (x_high, high, "high")):
        parts.append(g.op("MatMul", rows, g.reshape(g.op("Mul", codes, f"{name}_{scales}"), half, m.block_outputs)))
    return g.op("Add", *parts, to=to)


def rms_norm(g: GraphBuilder, x: str, weight: str, eps: float, to: str = "") -> str:
    """RMS norm over the last axis of a matrix. With three axes the backend computes something else.

    This is the operator. Written out, squares of values from 256 on overflow fp16, without an error.
    """
    return g.op("RMSNormalization", x, weight, to=to, axis=-1, epsilon=eps)


def exponential(g: GraphBuilder, x: str) -> str:
    """exp(x), for x up to 11. Below -88 the backend gives nan, or anything. From -18 down the result is zero in fp16."""
    return g.op("Exp", g.op("Max", x, g.half(-_VANISHING)))


def times_sigmoid(g: GraphBuilder, y: str, x: str, to: str = "") -> str:
    """Y * sigmoid(x), written as y / (1 + exp(-x)). So small sigmoids are right to three digits. The backend's own sigmoid is a
    table with an absolute error of up to 0.004.
    """
    bounded = g.op("Min", g.op("Neg", x), g.half(_LARGEST_EXPONENT))
    return g.op("Div", y, g.op("Add", exponential(g, bounded), g.half(1.0)), to=to)


def add_to_residual(g: GraphBuilder, delta: str, to: tuple[str, str] = ("", "")) -> tuple[str, str]:
    """The residual ``high`` + ``low``, two fp16 values, plus ``delta``. The result is two values again.

    TwoSum (D. Knuth, The Art of Computer Programming, volume 2, 4.2.2): ``low`` gets what rounding takes from ``high``. So
    small changes add up beside large values.
    """
    change = g.op("Add", "low", delta)
    total = g.op("Add", "high", change, to=to[0])
    added = g.op("Sub", total, "high")
    lost_high = g.op("Sub", "high", g.op("Sub", total, added))
    lost_change = g.op("Sub", change, added)
    return total, g.op("Add", lost_high, lost_change, to=to[1])
