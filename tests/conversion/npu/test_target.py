"""Packages for the NPU, as they are made, verified, planned for and refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the extra 'qnn'")

from npu_models import SHAPES, UNCOMPILED, convert_both
from reordered import sealed
from tiny import make_tiny

import estream
from estream.cli.plan import profile_path
from estream.conversion.convert import ConvertOptions, convert
from estream.conversion.npu.target import NpuTarget
from estream.conversion.synth import Variation, synthesize
from estream.errors import OptionError, PackageError
from estream.models import family_of
from estream.models.published_shapes import SHAPES as PUBLISHED
from estream.package.manifest import Manifest, seal
from estream.package.package import open_package
from estream.package.verify import verify


def test_each_device_refuses_the_other_ones_package(tmp_path: Path):
    cpu, npu = convert_both(tmp_path, "olmoe", SHAPES["olmoe"])
    with pytest.raises(PackageError, match=r"made for device 'qnn', not 'cpu'; 'estream convert SRC DST --device cpu'"):
        estream.load(npu.path)
    with pytest.raises(PackageError, match=r"made for device 'cpu', not 'qnn'; 'estream convert SRC DST --device qnn'"):
        estream.load(cpu.path, device="qnn")
    report = verify(npu)
    assert report.damaged == []


def test_a_text_shows_use_and_leaves_the_order_by_id(tmp_path: Path):
    make_tiny(tmp_path / "olmoe", "olmoe", SHAPES["olmoe"])
    np.save(tmp_path / "ids.npy", (300 * np.random.default_rng(0).random(2500) ** 3).astype(np.int64))
    eight = replace(UNCOMPILED, bits=8)
    plain = convert(tmp_path / "olmoe", tmp_path / "plain.estream", eight)
    shown = convert(tmp_path / "olmoe", tmp_path / "shown.estream", replace(eight, calibrate=tmp_path / "ids.npy"))
    assert shown.pages_path.read_bytes() == plain.pages_path.read_bytes()
    assert shown.manifest.expert_order is None
    assert shown.manifest.use is not None
    assert [use.tokens for use in shown.manifest.use.layers] == [2500.0] * shown.manifest.config.layers
    order = [list(range(shown.manifest.config.moe.experts))] * shown.manifest.config.layers
    with pytest.raises(PackageError, match="'expert_order' must be null in a package for the NPU: its experts lie by id"):
        Manifest.from_json(Path("m"), sealed(shown.manifest, expert_order=order))


def test_a_phone_is_planned_for_without_its_device(tmp_path: Path):
    _, npu = convert_both(tmp_path, "olmoe", SHAPES["olmoe"])
    found = estream.plan(npu.path, "2GiB", 128, device_profile=profile_path("sm8750-npu"))
    assert found.predictions[0].estimate.ttft_s > 0
    assert found.predictions[0].floor_bytes < 2 << 30


def test_options_that_do_not_fit_are_refused(tmp_path: Path):
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


def test_a_manifest_without_its_npu_part_is_refused(tmp_path: Path):
    _, npu = convert_both(tmp_path, "olmoe", SHAPES["olmoe"])
    manifest = npu.path / "manifest.json"
    data = json.loads(manifest.read_text())
    del data["npu"], data["checksum"]
    manifest.write_text(seal(data))
    with pytest.raises(PackageError):
        open_package(npu.path, "qnn")


#: By hand: slices of an expert as the CPU cuts it before the NPU's are made of it, and as the NPU has them.
SLICES = {
    "olmoe-1b-7b": (1, 1),
    "qwen1.5-moe-a2.7b": (1, 2),
    "deepseek-v2-lite": (1, 2),
    "mixtral-8x7b": (4, 56),
    "qwen3-30b-a3b": (1, 1),
}


@pytest.mark.parametrize(("name", "slices"), SLICES.items(), ids=list(SLICES))
def test_published_experts_are_cut_at_the_ends_of_slices(name: str, slices: tuple[int, int]):
    target = NpuTarget.of(family_of(PUBLISHED[name]).read_config(PUBLISHED[name]), 4, ())
    assert (target.source.expert_slices, target.quantization.expert_slices) == slices
    assert target.quantization.group == 32
    assert target.files == {}
    shapes = target.section.shapes
    assert shapes.routing.window >= shapes.routing.tokens
    assert shapes.routing.tokens % shapes.attention.chunk == 0
    assert shapes.routing.tokens % shapes.head.rows == 0


@pytest.mark.parametrize("variation", [None, Variation(routing_skew=1.0)])
def test_a_synthetic_package_is_for_the_device_that_it_names(
    variation: Variation | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    small = PUBLISHED["olmoe-1b-7b"] | {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 96}
    monkeypatch.setitem(PUBLISHED, "small", small | {"num_attention_heads": 2, "num_key_value_heads": 2})
    package = synthesize("small", tmp_path / "small.estream", UNCOMPILED, variation=variation)
    assert package.manifest.device == "qnn"
    assert verify(package).damaged == []
