"""Gated MLPs and the head."""

from estream.devices.qnn.graphs.builder import GraphBuilder
from estream.devices.qnn.graphs.parts import add_to_residual, product, rms_norm, times_sigmoid
from estream.package.npu.shapes import NpuShapes


def mlp(g: GraphBuilder, shapes: NpuShapes) -> None:  # noqa: ARG001 - graphs are filled alike
    """Sums + weights * MLP(x)."""
    gate, up = product(g, "x", "gate"), product(g, "x", "up")
    hidden = g.op("Mul", times_sigmoid(g, gate, gate), up)
    # Weighted before the product: fewer values than after it.
    y = product(g, g.op("Mul", hidden, "weights"), "down")
    g.op("Add", "sums", y, to="sums_out")


def head(g: GraphBuilder, shapes: NpuShapes) -> None:
    total, _ = add_to_residual(g, "delta")
    product(g, rms_norm(g, total, "final_norm", shapes.norm_eps), "head", to="logits")
