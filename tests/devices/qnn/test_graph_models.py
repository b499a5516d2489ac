"""The graphs as ONNX models: packages know what was compiled by their digests."""

import hashlib
from dataclasses import replace

import pytest

pytest.importorskip("onnx", reason="needs the extra 'qnn'")

from qnn_tiny import ATTENTION, LATENT, SHAPES

from estream.devices.qnn.graph_models import graph_model, model_digest
from estream.devices.qnn.toolchain import toolchain
from estream.package.npu.graph_specs import graph_specs

#: Written by onnx 1.23.2. A change of these compiles every package's graphs anew when it is loaded: on purpose alone.
DIGESTS = {
    "grouped": "5cfdaa70f3d0030c677ec25a25828ac5f3a8575dbcc7d5c8c8d58fa4cf6dd79e",
    "latent": "5c1a83c9e6c76362f90ec8c9273c87cbd6474f87719ed16e8a34a265da7dd2cf",
}


@pytest.mark.parametrize(("name", "attention"), [("grouped", ATTENTION), ("latent", replace(LATENT, q_lora_rank=96))])
def test_compiled_graphs_of_older_packages_stay_valid(name, attention):
    if toolchain()["onnx"] != "1.23.2":
        pytest.skip(f"onnx {toolchain()['onnx']} may write other bytes")
    shapes = replace(SHAPES, attention=attention)
    digests = [model_digest(graph_model(spec, shapes)) for spec in graph_specs(shapes)]
    assert hashlib.sha256("".join(digests).encode()).hexdigest() == DIGESTS[name]


def test_a_graph_is_always_the_same_bytes():
    for spec in graph_specs(SHAPES):
        assert graph_model(spec, SHAPES) == graph_model(spec, SHAPES)
