"""Graphs as they are loaded, bound and refused."""

import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the extra 'qnn'")

import qnn_reference as reference
from qnn_tiny import ATTENTION, HIDDEN, LATENT, SHAPES, SOC, Bound, normal

from estream.devices.qnn.graphs import build
from estream.devices.qnn.graphs.builder import GraphBuilder
from estream.devices.qnn.sessions import Session
from estream.errors import DeviceError
from estream.package.npu import graph_specs


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


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
