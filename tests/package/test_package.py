"""Opening, verifying and describing packages."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest
from paths import DEMO

from estream.conversion.convert import convert
from estream.errors import PackageError
from estream.host.sizes import MiB
from estream.models import family_of
from estream.models.published_shapes import SHAPES
from estream.package.layout import Quantization, build_tape
from estream.package.manifest import seal
from estream.package.package import Package, open_package
from estream.package.parts import MatrixPart, group_for
from estream.package.verify import verify


@pytest.fixture
def copy(demo_package: Package, tmp_path: Path) -> Path:
    return shutil.copytree(demo_package.path, tmp_path / "copy.estream")


def _manifest(path: Path, change) -> None:
    data = json.loads((path / "manifest.json").read_text())
    del data["checksum"]
    change(data)
    (path / "manifest.json").write_text(seal(data))


DAMAGE = {
    "absent": (shutil.rmtree, "there is no such folder; 'estream convert SRC"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "no manifest.json"),
    "not JSON": (lambda p: (p / "manifest.json").write_text("{"), "not valid JSON"),
    "another format": (lambda p: (p / "manifest.json").write_text("[]"), "not an estream package"),
    "another version": (
        lambda p: _manifest(p, lambda d: d.update(version=1)),
        "package format version 1, but this estream reads versions 2 and 3",
    ),
    "another device": (
        lambda p: _manifest(p, lambda d: d.update(device="qnn")),
        "made for device 'qnn', not 'cpu'; 'estream convert SRC DST --device cpu'",
    ),
    "unknown config": (lambda p: _manifest(p, lambda d: d["model"].update(new=1)), "'model.new' is not known"),
    "unknown bits": (
        lambda p: _manifest(p, lambda d: d["quantization"].update(expert_bits=3)),
        "'quantization.expert_bits' must be int >= 4, found 3",
    ),
    "a page missing": (lambda p: _manifest(p, lambda d: d["tape"].pop()), "'tape' has 108 pages, its config implies 109"),
    "a page of another length": (
        lambda p: _manifest(p, lambda d: d["tape"][5].update(length=1)),
        "page 5 is .*its config implies",
    ),
    "a page elsewhere": (lambda p: _manifest(p, lambda d: d["tape"][5].update(offset=0)), "page 5 .* lies at 0, not at"),
    "a field missing": (lambda p: _manifest(p, lambda d: d.pop("tape")), "'tape' is missing"),
    "truncated pages": (lambda p: (p / "pages.bin").write_bytes(b""), "pages.bin: 0 bytes, expected"),
    "no embedding": (lambda p: (p / "embedding.bin").unlink(), "embedding.bin: missing"),
    "an edited manifest": (
        lambda p: (p / "manifest.json").write_text((p / "manifest.json").read_text().replace('"top_k":4', '"top_k":2')),
        "the manifest was edited or damaged",
    ),
    "an edited tokenizer": (lambda p: (p / "tokenizer.json").write_text("{}"), "tokenizer.json: wrong checksum"),
    "a damaged norm": (
        lambda p: (p / "resident.safetensors").write_bytes((p / "resident.safetensors").read_bytes()[:-1] + b"\x01"),
        "resident.safetensors: wrong checksum",
    ),
    "no resident tensors": (lambda p: (p / "resident.safetensors").unlink(), "resident.safetensors: missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_package_is_refused_with_what_to_do(damage: str, copy: Path):
    change, message = DAMAGE[damage]
    change(copy)
    with pytest.raises(PackageError, match=message):
        open_package(copy, "cpu")


def test_a_package_whose_source_changed_is_refused_and_one_whose_source_is_gone_is_not(tmp_path: Path):
    source = shutil.copytree(DEMO, tmp_path / "source")
    package = convert(source, tmp_path / "demo.estream")
    os.utime(source / "model.safetensors")
    assert open_package(package.path, "cpu").manifest == package.manifest
    with open(source / "model.safetensors", "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"other")
    with pytest.raises(
        PackageError, match=r"model.safetensors has changed since the package was made from it; convert it again with --force"
    ):
        open_package(package.path, "cpu")
    assert open_package(package.path).manifest == package.manifest
    shutil.rmtree(source)
    assert open_package(package.path, "cpu").manifest == package.manifest


def test_verify_finds_every_damaged_page_and_row(copy: Path):
    package = open_package(copy)
    assert verify(package).damaged == []
    pages = bytearray((copy / "pages.bin").read_bytes())
    for page in (package.manifest.tape[3], package.manifest.tape[-1]):
        pages[page.offset + page.bytes - 1] ^= 1
    (copy / "pages.bin").write_bytes(pages)
    rows = bytearray((copy / "embedding.bin").read_bytes())
    for row in (0, 8191):
        rows[row * package.manifest.embedding_record_bytes] ^= 1
    (copy / "embedding.bin").write_bytes(rows)
    damaged = verify(package).damaged
    assert len(damaged) == 4
    assert "layer 0 expert 1 at offset" in damaged[0]
    assert "head slice 0 at offset" in damaged[1]
    assert "row 0 at offset 0" in damaged[2]
    assert "row 8191 at offset" in damaged[3]


def test_groups_are_the_largest_that_divide():
    assert [group_for(n, 128) for n in (2048, 1408, 10944, 2880, 64, 40)] == [128, 128, 64, 64, 64, 32]
    assert [group_for(n, 32) for n in (2048, 1408, 40)] == [32, 32, 32]


def test_pages_of_the_published_shape_cover_every_weight():
    from estream.models import olmoe

    config = olmoe.read_config(SHAPES["olmoe-1b-7b"])
    quantization = Quantization.choose(config, 4, 8, 64)
    tape = list(build_tape(config, quantization))
    weights = sum(p.outputs * p.source_inputs for s in tape for p in s.layout.parts if hasattr(p, "bits"))
    assert weights == 16 * (64 * 3 * 2048 * 1024 + 4 * 2048**2) + 50304 * 2048
    assert quantization.expert_slices == 1
    assert [s.kind for s in tape[:3]] == ["attention", "router", "expert"]
    assert sum(s.count for s in tape if s.kind == "head") == 50304


def test_large_experts_are_cut_into_equal_slices():
    from estream.models import mixtral

    config = mixtral.read_config(SHAPES["mixtral-8x7b"])
    quantization = Quantization.choose(config, 4, 8, 64)
    experts = [s for s in build_tape(config, quantization) if s.kind == "expert" and (s.layer, s.expert) == (5, 3)]
    assert [s.slice for s in experts] == list(range(quantization.expert_slices))
    assert sum(s.count for s in experts) == config.moe.intermediate_size
    assert [s.first for s in experts] == [s.slice * s.count for s in experts]
    assert 16 * MiB <= experts[0].bytes <= 32 * MiB


#: Parameters that the models' own files have.
PUBLISHED = {
    "olmoe-1b-7b": 6_919_161_856,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    # The language model alone, as transformers builds it.
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "deepseek-v2-lite": 15_706_484_224,
    "gpt-oss-20b": 20_914_757_184,
}


@pytest.mark.parametrize("name", SHAPES)
def test_tapes_hold_as_many_weights_as_was_published(name: str):
    config = family_of(SHAPES[name]).read_config(SHAPES[name])
    total = config.vocabulary * config.hidden + config.hidden  # embedding and last norm
    for spec in build_tape(config, Quantization.choose(config, 4, 8, 64)):
        assert spec.bytes <= 48 * MiB
        for part in spec.layout.parts:
            if isinstance(part, MatrixPart):
                total += part.outputs * part.source_inputs
            elif part.name == "router":
                total += config.hidden * (config.moe.experts + config.moe.shared_gate)
            else:
                total += math.prod(part.shape)
    assert total == PUBLISHED[name]
