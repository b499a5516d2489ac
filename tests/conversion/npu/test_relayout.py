"""From the CPU's pages to the NPU's: the same integers in the layout that the graphs read."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the extra 'qnn'")

from npu_models import SHAPES, convert_both, slices_of
from reference import PackageWeights, unpack

from estream.conversion.npu.relayout import unpack_codes
from estream.package.npu import graph_specs
from estream.package.npu.matrices import MatrixSpec, unpack_matrix
from estream.package.npu.pages import mlp_shapes
from estream.package.package import Package
from estream.package.parts import MatrixPart, TensorPart

SLICED = {
    "mixtral": SHAPES["mixtral"] | {"intermediate_size": 160},
    "deepseek_v2": SHAPES["deepseek_v2"] | {"intermediate_size": 200},
}


def _arrays(package: Package, page) -> dict[str, np.ndarray]:
    data = np.fromfile(package.pages_path, np.uint8, page.bytes, offset=page.offset)
    parts = [part for part in page.spec.layout.parts if isinstance(part, TensorPart)]
    return {p.name: data[p.offset : p.offset + p.bytes].view(p.dtype).reshape(p.shape) for p in parts}


def _weights(spec: MatrixSpec, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """[outputs, inputs]."""
    codes, scales = unpack_matrix(spec, arrays)
    return (codes * np.repeat(scales.astype(np.float32), spec.group, axis=0)).T


@pytest.mark.parametrize(
    ("family", "shape"), [*SHAPES.items(), *SLICED.items()], ids=[*SHAPES, *(f"{f}, sliced" for f in SLICED)]
)
def test_both_devices_hold_the_same_integers(tmp_path: Path, family: str, shape: dict):
    with slices_of(64) if shape in SLICED.values() else nullcontext():
        cpu, npu = convert_both(tmp_path, family, shape)
    config, section = cpu.manifest.config, npu.manifest.npu
    assert section is not None
    theirs, shapes = PackageWeights(cpu), section.shapes
    graphs = (graph_specs.qkv(shapes), graph_specs.output(shapes), graph_specs.head(shapes))
    attention = {m.name: m for graph in graphs for m in graph.matrices}
    seen = 0
    for page in npu.manifest.tape:
        spec, arrays = page.spec, _arrays(npu, page)
        if spec.kind in ("expert", "shared"):
            whole = dict(zip(("gate", "up", "down"), theirs.mlp(spec.kind, spec.layer, spec.expert), strict=True))
            units = slice(spec.first, spec.first + spec.count)
            for m in mlp_shapes(shapes, spec.kind).matrices(config.hidden):
                expected = whole["down"][:, units] if m.name == "down" else whole[m.name][units]
                found = _weights(m, arrays)
                np.testing.assert_array_equal(found[: expected.shape[0], : expected.shape[1]], expected)
                assert np.count_nonzero(found) == np.count_nonzero(expected)
                seen += 1
            continue
        (their,) = (
            [p for p in theirs.page(spec.kind, spec.layer) if p.spec.slice == spec.slice] if spec.kind != "head" else [None]
        )
        if their is None:
            expected = theirs.head()[spec.first : spec.first + spec.count]
            np.testing.assert_array_equal(_weights(attention["head"], arrays)[: spec.count], expected)
            continue
        for part in their.spec.layout.parts:
            if isinstance(part, MatrixPart):
                np.testing.assert_array_equal(_weights(attention[part.name], arrays), theirs.matrix(their, part.name))
                seen += 1
            elif part.name != "router":
                expected = theirs.floats(their, part.name)
                np.testing.assert_array_equal(arrays[part.name], expected[: arrays[part.name].size].astype(np.float16))
        if spec.kind == "router" and their.spec.layout.has("router"):
            router = theirs.floats(their, "router")[:, : config.moe.experts]
            both = arrays["router_high"].astype(np.float32) + arrays["router_low"]
            np.testing.assert_allclose(both, router, rtol=2e-6, atol=1e-7)
    assert seen >= 4 * config.layers


def test_no_weight_of_a_cpu_page_is_lost_in_another_order():
    rng = np.random.default_rng(0)
    for bits in (4, 8):
        part = MatrixPart("w", 0, 70, 96, 96, bits, 32)
        data = rng.integers(0, 256, part.bytes, dtype=np.uint8)
        data.reshape(part.panels * part.groups, part.block_bytes)[:, -64:].view(np.float16)[...] = rng.random((9, 32))
        codes, scales = unpack_codes(part, data)
        np.testing.assert_array_equal(codes * np.repeat(scales.astype(np.float32), 32, axis=1), unpack(part, data))
