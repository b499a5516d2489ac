"""The NPU's layout of weights, and graphs as they are compiled, loaded, bound and refused."""

import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the extra 'qnn'")

import qnn_reference as reference
from qnn_tiny import ATTENTION, HIDDEN, LATENT, SHAPES, SOC, Bound, mlp_inputs, normal, run

from estream.conversion.npu.compiler import compile_model
from estream.devices.qnn.graphs import build
from estream.devices.qnn.graphs.builder import GraphBuilder
from estream.devices.qnn.sessions import Session
from estream.errors import DeviceError, OptionError
from estream.package.npu import graph_specs
from estream.package.npu.matrices import MatrixSpec, pack_matrix, unpack_matrix


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("bits", [4, 8])
def test_packing_is_inverted(bits, blocks, rng):
    spec = MatrixSpec("m", 128, 96, bits, 32, blocks)
    lowest, highest = (-8, 7) if bits == 4 else (-127, 127)
    codes = rng.integers(lowest, highest + 1, (128, 96), dtype=np.int8)
    scales = rng.standard_normal((4, 96)).astype(np.float16)
    arrays = pack_matrix(spec, codes, scales)
    assert [(n, a.dtype, a.shape) for n, a in arrays.items()] == [(n, np.dtype(d), s) for n, d, s in spec.parts()]
    assert sum(array.nbytes for array in arrays.values()) == spec.bytes
    found_codes, found_scales = unpack_matrix(spec, arrays)
    np.testing.assert_array_equal(found_codes, codes)
    np.testing.assert_array_equal(found_scales, scales)


def test_packing_refuses_what_does_not_fit():
    with pytest.raises(OptionError, match="multiple of 64"):
        MatrixSpec("m", 96, 32, 4, 32)
    with pytest.raises(OptionError, match="4 or 8"):
        MatrixSpec("m", 96, 32, 2, 32)
    spec = MatrixSpec("m", 64, 32, 4, 32)
    with pytest.raises(OptionError, match="4094"):
        pack_matrix(spec, np.zeros((64, 32), np.int8), np.full((2, 32), 5000, np.float16))
    with pytest.raises(OptionError, match=r"expected int8 \[64, 32\]"):
        pack_matrix(spec, np.zeros((32, 32), np.int8), np.ones((2, 32), np.float16))


@pytest.mark.parametrize("attention", [ATTENTION, LATENT], ids=["grouped", "latent"])
def test_every_node_is_on_the_npu(attention):
    shapes = replace(SHAPES, attention=attention)
    for spec in graph_specs.graph_specs(shapes):
        assignment = Session(spec, build(spec, shapes), SOC).assignment()
        assert list(assignment) == ["QNNExecutionProvider"]
        assert assignment["QNNExecutionProvider"]


def test_a_node_that_the_npu_refuses_is_an_error():
    spec = graph_specs.gather(SHAPES)
    builder = GraphBuilder(spec)
    places, values = builder.integers(np.zeros((1, HIDDEN))), builder.half(np.zeros((1, HIDDEN)))
    builder.op("ScatterElements", "normed", places, values, to="rows", reduction="add")
    with pytest.raises(DeviceError, match=r"gather64.* cannot be loaded"):
        Session(spec, builder.model(), SOC)


def test_a_compiled_graph_gives_what_an_uncompiled_one_gives(rng):
    spec = graph_specs.mlp(SHAPES, SHAPES.expert, 16)
    inputs, model = mlp_inputs(spec, rng), build(spec, SHAPES)
    compiled = compile_model(spec.name, model, SOC)
    assert compiled.traffic.spilled == 0
    assert compiled.traffic.read >= sum(tensor.bytes for tensor in spec.weights)
    found = Bound(spec, SHAPES, inputs, compiled.context).run()["sums_out"]
    np.testing.assert_array_equal(found, run(spec, SHAPES, inputs)["sums_out"])


def test_what_the_compiler_cannot_do_is_an_error():
    spec = graph_specs.gather(SHAPES)
    with pytest.raises(OptionError, match="sm8650, sm8750, sm8850, x-elite"):
        compile_model(spec.name, b"", "sm1")
    with pytest.raises(DeviceError, match=r"gather64.*cannot be compiled for sm8750"):
        compile_model(spec.name, b"no model", SOC)
    with pytest.raises(DeviceError, match="took more than"):
        compile_model(spec.name, build(spec, SHAPES), SOC, seconds=0.01)


@pytest.mark.npu
def test_ten_thousand_calls_leak_nothing(rng):
    shapes = replace(SHAPES, hidden=64)
    spec = graph_specs.mlp(shapes, shapes.expert, 16)
    arrays = reference.random_weights(spec, rng) | {"x": normal(rng, 16, 64), "sums": normal(rng, 16, 64)}
    bound = Bound(spec, shapes, arrays | {"weights": np.ones((16, 1), np.float16)})
    experts = [reference.random_weights(spec, rng) for _ in range(2)]
    first = [bound.run(**expert)["sums_out"] for expert in experts]
    for _ in range(100):
        bound.run()
    before = resident_bytes()
    for call in range(10_000):
        found = bound.run(**experts[call % 2])["sums_out"]
    assert resident_bytes() - before < 4 << 20
    np.testing.assert_array_equal(found, first[1])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
