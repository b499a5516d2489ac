"""Tiny shapes for the NPU's graphs, and running one of them on arrays."""

from dataclasses import replace

import numpy as np
from qnn_reference import Arrays, random_weights

from estream.devices.qnn.graphs import build
from estream.devices.qnn.sessions import Session
from estream.package.npu.graph_specs import GraphSpec
from estream.package.npu.shapes import AttentionShapes, HeadShapes, MlpShapes, NpuShapes, RoutingShapes

SOC = "sm8750"
HIDDEN, CHUNK = 128, 64
ATTENTION = AttentionShapes(heads=8, kv_heads=2, qk_dim=32, v_dim=32, rotated=32, scale=32**-0.5, chunk=CHUNK, bits=8, group=32)
LATENT = replace(ATTENTION, heads=4, kv_heads=4, qk_dim=48, rotated=16, kv_lora_rank=64)
ROUTING = RoutingShapes(experts=8, top_k=2, tokens=64, window=64, norm_topk_prob=True, shared_gate=True)
SHAPES = NpuShapes(
    hidden=HIDDEN,
    norm_eps=1e-5,
    attention=ATTENTION,
    routing=ROUTING,
    expert=MlpShapes(slice_width=64, bits=4, group=32, tiles=(16, 64)),
    head=HeadShapes(rows=16, vocabulary=96, bits=8, group=32),
    shared=MlpShapes(slice_width=64, bits=8, group=32, tiles=(64,)),
)


class Bound:
    """A session with arrays bound to all inputs and outputs."""

    def __init__(self, spec: GraphSpec, shapes: NpuShapes, arrays: Arrays, model: bytes | None = None) -> None:
        self.session = Session(spec, build(spec, shapes) if model is None else model, SOC)
        self.inputs = {tensor.name: arrays[tensor.name].copy() for tensor in spec.inputs}
        self.outputs = {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in spec.outputs}
        for tensor in spec.inputs:
            array = self.inputs[tensor.name]
            assert (array.shape, array.dtype) == (tensor.shape, np.dtype(tensor.dtype)), tensor.name
            self.session.bind_input(tensor.name, array.ctypes.data)
        for name, array in self.outputs.items():
            self.session.bind_output(name, array.ctypes.data)

    def run(self, **changed: np.ndarray) -> Arrays:
        """Overwrite some inputs where they lie, and compute."""
        for name, array in changed.items():
            self.inputs[name][...] = array
        self.session.run()
        return {name: array.copy() for name, array in self.outputs.items()}


def run(spec: GraphSpec, shapes: NpuShapes, arrays: Arrays) -> Arrays:
    return Bound(spec, shapes, arrays).run()


def normal(rng: np.random.Generator, *shape: int, size: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * size).astype(np.float16)


def mlp_inputs(spec: GraphSpec, rng: np.random.Generator) -> Arrays:
    rows = spec.rows
    weights = rng.random((rows, 1)).astype(np.float16)
    inputs = {"x": normal(rng, rows, HIDDEN), "weights": weights, "sums": normal(rng, rows, HIDDEN)}
    return random_weights(spec, rng) | inputs


def relative_rms(found: np.ndarray, wanted: np.ndarray) -> float:
    difference = found.astype(np.float64) - wanted
    return float(np.sqrt((difference * difference).mean() / (wanted.astype(np.float64) ** 2).mean()))
