"""Compiling graphs for named chips, and the compiler's account of the memory traffic."""

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the extra 'qnn'")

from qnn_tiny import SHAPES, SOC, Bound, mlp_inputs, run

from estream.conversion.npu.compiler import compile_model, parse_traffic
from estream.devices.qnn.graphs import build
from estream.errors import DeviceError, OptionError
from estream.package.npu import graph_specs


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


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


def test_traffic_is_read_from_the_log():
    log = "x DDR bandwidth summary: spill_bytes=1 fill_bytes=2 write_total_bytes=30 read_total_bytes=40\nspill_bytes=5"
    traffic = parse_traffic("g", log)
    assert (traffic.spilled, traffic.filled, traffic.written, traffic.read) == (6, 2, 30, 40)
    with pytest.raises(DeviceError, match="graph 'g': no 'spill_bytes='"):
        parse_traffic("g", "another release")
