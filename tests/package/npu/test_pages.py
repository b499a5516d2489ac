"""Packages for the NPU: the same integers as the CPU's, in the layout that the graphs read; refusals by name."""

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from npu_models import CONTEXT, SHAPES, UNCOMPILED, slices_of
from reference import PackageWeights, unpack
from tiny import FAMILIES, make_tiny

import estream
from estream.cli.plan import profile_path
from estream.conversion.convert import ConvertOptions, convert
from estream.conversion.npu.target import NpuTarget
from estream.conversion.synth import synthesize
from estream.errors import OptionError, PackageError
from estream.models import family_of
from estream.models.published_shapes import SHAPES as REAL_SHAPES
from estream.package.npu import graph_specs
from estream.package.npu.matrices import MatrixSpec, unpack_matrix
from estream.package.npu.pages import mlp_shapes
from estream.package.npu.section import NpuSection
from estream.package.package import Package, open_package
from estream.package.parts import MatrixPart, TensorPart
from estream.package.verify import verify

pytest.importorskip("onnxruntime_qnn")


def _pair(folder: Path, family: str, shape: dict) -> tuple[Package, Package]:
    make_tiny(folder / "source", family, CONTEXT | shape)
    cpu = convert(folder / "source", folder / "cpu.estream", ConvertOptions(group=32))
    return cpu, convert(folder / "source", folder / "npu.estream", UNCOMPILED)


def _arrays(package: Package, page) -> dict[str, np.ndarray]:
    data = np.fromfile(package.pages_path, np.uint8, page.bytes, offset=page.offset)
    parts = [part for part in page.spec.layout.parts if isinstance(part, TensorPart)]
    return {p.name: data[p.offset : p.offset + p.bytes].view(p.dtype).reshape(p.shape) for p in parts}


def _weights(spec: MatrixSpec, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """[outputs, inputs]."""
    codes, scales = unpack_matrix(spec, arrays)
    return (codes * np.repeat(scales.astype(np.float32), spec.group, axis=0)).T


SLICED = {
    "mixtral": SHAPES["mixtral"] | {"intermediate_size": 160},
    "deepseek_v2": SHAPES["deepseek_v2"] | {"intermediate_size": 200},
}


@pytest.mark.parametrize(
    ("family", "shape"), [*SHAPES.items(), *SLICED.items()], ids=[*SHAPES, *(f"{f}, sliced" for f in SLICED)]
)
def test_both_devices_hold_the_same_integers(tmp_path: Path, family: str, shape: dict):
    with slices_of(64) if shape in SLICED.values() else nullcontext():
        cpu, npu = _pair(tmp_path, family, shape)
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


def test_each_device_refuses_the_other_ones_package(tmp_path: Path):
    cpu, npu = _pair(tmp_path, "olmoe", SHAPES["olmoe"])
    with pytest.raises(PackageError, match=r"made for device 'qnn', not 'cpu'; 'estream convert SRC DST --device cpu'"):
        estream.load(npu.path)
    with pytest.raises(PackageError, match=r"made for device 'cpu', not 'qnn'; 'estream convert SRC DST --device qnn'"):
        estream.load(cpu.path, device="qnn")
    report = verify(npu)
    assert report.damaged == []


def test_a_phone_is_planned_for_without_its_device(tmp_path: Path):
    _, npu = _pair(tmp_path, "olmoe", SHAPES["olmoe"])
    found = estream.plan(npu.path, "2GiB", 128, device_profile=profile_path("sm8750-npu"))
    assert found.predictions[0].prediction.ttft_s > 0
    assert found.predictions[0].floor_bytes < 2 << 30


def test_a_manifest_without_its_npu_part_is_refused(tmp_path: Path):
    _, npu = _pair(tmp_path, "olmoe", SHAPES["olmoe"])
    manifest = npu.path / "manifest.json"
    data = json.loads(manifest.read_text())
    assert NpuSection.from_json(data["npu"]) == npu.manifest.npu
    from estream.package.manifest import seal

    del data["npu"], data["checksum"]
    manifest.write_text(seal(data))
    with pytest.raises(PackageError):
        open_package(npu.path, "qnn")


def test_what_the_graphs_lack_is_refused_by_name(tmp_path: Path):
    shape = next(iter(FAMILIES["qwen3_next"].shapes.values()))
    make_tiny(tmp_path / "next", "qwen3_next", shape)
    with pytest.raises(OptionError, match=r"the family qwen3_next is not one .*--device cpu"):
        convert(tmp_path / "next", tmp_path / "out.estream", UNCOMPILED)
    make_tiny(tmp_path / "olmoe", "olmoe", SHAPES["olmoe"])
    for options, message in (
        (ConvertOptions(device="qnn", soc=("sm1",)), "'sm1' is not known"),
        (ConvertOptions(device="qnn", group=64), "--group must be 32"),
        (ConvertOptions(device="cpu", soc=("sm8750",)), "--device qnn"),
    ):
        with pytest.raises(OptionError, match=message):
            convert(tmp_path / "olmoe", tmp_path / "out.estream", options)
    assert not (tmp_path / "out.estream").exists()


def test_a_missing_toolchain_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_tiny(tmp_path / "olmoe", "olmoe", SHAPES["olmoe"])
    monkeypatch.setattr("estream.devices.qnn.toolchain.PACKAGES", ("onnxruntime-nothing",))
    with pytest.raises(OptionError, match=r"pip install 'estream\[qnn\]'"):
        convert(tmp_path / "olmoe", tmp_path / "out.estream", UNCOMPILED)


@pytest.mark.parametrize("name", ["olmoe-1b-7b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite", "mixtral-8x7b", "qwen3-30b-a3b"])
def test_published_shapes_have_few_graphs_and_pages_that_tile_the_model(name: str):
    config = family_of(REAL_SHAPES[name]).read_config(REAL_SHAPES[name])
    target = NpuTarget.of(config, 4, ())
    shapes = target.section.shapes
    assert len(graph_specs.graph_specs(shapes)) <= 12
    assert shapes.routing.window >= shapes.routing.tokens
    assert shapes.routing.tokens % shapes.attention.chunk == 0
    assert shapes.routing.tokens % shapes.head.rows == 0
    assert (
        target.source.expert_slices == 1
        or (config.moe.intermediate_size // target.source.expert_slices) % shapes.expert.slice_width == 0
    )


def test_a_synthetic_package_is_for_the_device_that_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small = REAL_SHAPES["olmoe-1b-7b"] | {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 96}
    monkeypatch.setitem(REAL_SHAPES, "small", small | {"num_attention_heads": 2, "num_key_value_heads": 2})
    package = synthesize("small", tmp_path / "small.estream", UNCOMPILED)
    assert package.manifest.device == "qnn"
    assert verify(package).damaged == []


def test_no_weight_of_a_cpu_page_is_lost_in_another_order():
    from estream.conversion.npu.relayout import unpack_codes

    rng = np.random.default_rng(0)
    for bits in (4, 8):
        part = MatrixPart("w", 0, 70, 96, 96, bits, 32)
        data = rng.integers(0, 256, part.bytes, dtype=np.uint8)
        data.reshape(part.panels * part.groups, part.block_bytes)[:, -64:].view(np.float16)[...] = rng.random((9, 32))
        codes, scales = unpack_codes(part, data)
        np.testing.assert_array_equal(codes * np.repeat(scales.astype(np.float32), 32, axis=1), unpack(part, data))
