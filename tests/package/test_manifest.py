"""Manifests as they are written, and hostile ones: refused in one line that names the field, before anything is listed."""

import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from estream.errors import PackageError
from estream.host import regular_file
from estream.models import family_of
from estream.models.config import ModelConfig
from estream.models.consistency import check_config
from estream.models.published_shapes import SHAPES
from estream.package.layout import Quantization
from estream.package.manifest import Manifest, seal
from estream.package.package import Package, open_package
from estream.package.tapes import count_pages, tape_of
from estream.package.writer import PackageSpec, write_package
from estream.schema import SchemaError, from_plain, to_plain

Change = Callable[[dict[str, Any]], object]


def _text(package: Package) -> str:
    return (package.path / "manifest.json").read_text()


def _changed(package: Package, change: Change) -> bytes:
    data = json.loads(_text(package))
    del data["checksum"]
    change(data)
    return seal(data).encode()


def _at(path: str, value: Any) -> Change:
    *inner, last = path.split(".")

    def change(data: dict[str, Any]) -> None:
        for name in inner:
            data = data[name]
        data[last] = value

    return change


def test_a_manifest_is_written_as_it_was_read(demo_package: Package):
    text = _text(demo_package)
    assert Manifest.from_json(Path("m"), text.encode()).to_json() == text
    assert Manifest.from_json(Path("m"), text.encode()) == demo_package.manifest


def test_manifest_keys_stay_as_they_are(demo_package: Package):
    """Packages of earlier versions have these; a field may be renamed, its key may not."""
    data = json.loads(_text(demo_package))
    assert " ".join(data) == (
        "format version device created_by synthetic source model quantization embedding report files expert_order use tape "
        "checksum"
    )
    assert " ".join(data["model"]) == (
        "family hidden layers vocabulary context norm_eps attention moe tied_head norm head_bias dense_width dense_layers "
        "embedding_factor residual_factor logits_factor"
    )
    assert " ".join(data["model"]["moe"]) == (
        "experts top_k width normalise scoring scaling groups top_groups jitter router_bias correction_bias shared_width "
        "shared_gate expert_bias gate_alpha gate_limit"
    )
    assert " ".join(data["model"]["attention"]) == (
        "heads kv_heads head_dim value_dim scale rope qk_norm clip input_bias output_bias sinks window window_layers latent "
        "output_gate delta delta_layers"
    )


HOSTILE: dict[str, tuple[Change, str]] = {
    "layers": (_at("model.layers", 10**9), "'model.layers' must be int <= 4096, found 1000000000"),
    "no layers": (_at("model.layers", 0), "'model.layers' must be int >= 1, found 0"),
    "experts": (_at("model.moe.experts", 10**9), "'model.moe.experts' must be int <= "),
    "vocabulary": (_at("model.vocabulary", 10**9), "'model.vocabulary' must be int <= "),
    "hidden": (_at("model.hidden", 10**400), "'model.hidden' must be int <= "),
    "slices": (_at("quantization.expert_slices", 10**12), "'quantization.expert_slices' must be int <= "),
    "as many as allowed": (
        lambda m: (m["model"].update(layers=4096), m["model"]["moe"].update(experts=65536)),
        "'tape' has 109 pages, its config implies 268443649",
    ),
    "slices that do not divide": (
        _at("quantization.expert_slices", 3),
        "'quantization.expert_slices' must divide the width 128",
    ),
    "rows of the head": (_at("quantization.head_rows", 0), "'quantization.head_rows' must be int >= 1"),
    "group": (_at("quantization.group", 96), r"'quantization.group' must be one of \(128, 64, 32\), found 96"),
    "top_k text": (_at("model.moe.top_k", "4"), "'model.moe.top_k' must be int, found '4'"),
    "top_k true": (_at("model.moe.top_k", True), "'model.moe.top_k' must be int, found True"),
    "top_k of experts": (
        _at("model.moe.top_k", 17),
        "'model.moe.top_k' must be at most the 16 experts to choose from, found 17",
    ),
    "groups": (_at("model.moe.groups", 3), "'model.moe.groups' must divide the 16 experts, found 3"),
    "top groups": (_at("model.moe.top_groups", 2), "'model.moe.top_groups' must be at most the 1 groups, found 2"),
    "heads": (_at("model.attention.kv_heads", 3), "'model.attention.kv_heads' must divide the 4 heads, found 3"),
    "eps NaN": (_at("model.norm_eps", math.nan), "'model.norm_eps' must be float >= 0.0, found nan"),
    "eps infinite": (_at("model.norm_eps", math.inf), r"'model.norm_eps' must be float <= 3.4e\+38, found inf"),
    "eps of 400 digits": (_at("model.norm_eps", 10**400), "'model.norm_eps' must be a finite number"),
    "eps negative": (_at("model.norm_eps", -1e-5), "'model.norm_eps' must be float >= 0.0, found -1e-05"),
    "theta": (_at("model.attention.rope.theta", math.nan), r"'model.attention.rope.theta' must be float"),
    "rope odd": (
        _at("model.attention.rope.dims", 63),
        "'model.attention.rope.dims' must be int that's a multiple of 2, found 63",
    ),
    "rope wide": (
        _at("model.attention.rope.dims", 128),
        "'model.attention.rope.dims' must be less than the head's 64, found 128",
    ),
    "rope none": (_at("model.attention.rope.dims", 0), "'model.attention.rope.dims' must be int >= 2"),
    "rope list": (_at("model.attention.rope", [1]), r"'model.attention.rope' must be object, found \[1\]"),
    "longrope": (
        _at("model.attention.rope.scaling", "longrope"),
        "'model.attention.rope.short_factors' and 'long_factors' must",
    ),
    "scaling": (
        _at("model.attention.rope.scaling", "ntk"),
        "'model.attention.rope.scaling' must be 'default' or 'linear' or .*, found 'ntk'",
    ),
    "dense layer": (_at("model.dense_layers", [6]), "'model.dense_layers' must name layers below 6, found 6"),
    "dense layer twice": (_at("model.dense_layers", [1, 1]), "'model.dense_layers' must name each layer once"),
    "dense layer text": (_at("model.dense_layers", [0, "1"]), r"'model.dense_layers\[1\]' must be int, found '1'"),
    "window": (_at("model.attention.window_layers", [1]), "'model.attention.window' must be given where"),
    "delta": (_at("model.attention.delta_layers", [1]), "'model.attention.delta' must be given where"),
    "files list": (_at("files", []), r"'files' must be object, found \[\]"),
    "file absolute": (
        _at("files", {"/dev/zero": "0" * 16}),
        "'files' has a key '/dev/zero', which must be a file name without",
    ),
    "file above": (_at("files", {"../secret": "0" * 16}), "'files' has a key '../secret', which"),
    "file dots": (_at("files", {"..": "0" * 16}), "'files' has a key '..', which"),
    "file below": (_at("files", {"a/b": "0" * 16}), "'files' has a key 'a/b', which"),
    "file NUL": (_at("files", {"a\0b": "0" * 16}), r"'files' has a key 'a\\x00b', which"),
    "file line": (_at("files.a\nb", "0"), r"'files.a\?b' must be 16 hexadecimal digits, found '0'"),
    "context above": (_at("files", {"contexts/../x.onnx": "0" * 16}), "'files' has a key 'contexts/../x.onnx', which"),
    "checksum short": (_at("files", {"a": "0" * 16, "b": "12"}), "'files.b' must be 16 hexadecimal digits, found '12'"),
    "checksum signed": (_at("files", {"a": "+" + "0" * 15}), "'files.a' must be 16 hexadecimal digits"),
    "page checksum": (
        lambda m: m["tape"][3].update(checksum="0x00000000000000"),
        r"'tape\[3\].checksum' must be 16 hexadecimal",
    ),
    "page length": (lambda m: m["tape"][3].update(length=-1), r"'tape\[3\].length' must be int >= 0, found -1"),
    "page kind": (lambda m: m["tape"][3].update(kind="x"), r"'tape\[3\].kind' must be 'attention' or .*, found 'x'"),
    "page with more": (lambda m: m["tape"][3].update(more=1), r"'tape\[3\].more' is not known"),
    "tape of numbers": (_at("tape", [1]), r"'tape\[0\]' must be object, found 1"),
    "dtype": (_at("embedding.dtype", "int8"), "'embedding.dtype' must be 'bfloat16' or 'float16' or 'float32', found 'int8'"),
    "device": (_at("device", "gpu"), "'device' must be 'cpu' or 'qnn', found 'gpu'"),
    "unknown": (_at("more", 1), "'more' is not known"),
    "unknown over lines": (_at("a\nb", 1), r"'a\?b' is not known"),
    "unknown like a place": (lambda m: m.update({"x` - at `$.nothing": 1}), "unknown field"),
    "source kind": (lambda m: m["source"].pop("kind"), "'source.kind' is missing"),
    "source file": (
        _at("source.files", {"../x": {}}),
        "'source.files' has a key '../x', which must be a path below the folder",
    ),
    "source file size": (
        _at("source.files", {"x": {"bytes": -1, "changed_ns": 0, "checksum": "0" * 16}}),
        "'source.files.x.bytes' must be int >= 0, found -1",
    ),
    "source folder": (lambda m: m["source"].pop("folder"), "'source.folder' is missing"),
    "source folder NUL": (_at("source.folder", "/a\0b"), "'source.folder' must be a path without NUL"),
    "report empty": (_at("report.layers", []), "'report.layers' must be array of length >= 1"),
    "npu": (_at("npu", {"shapes": 1}), "'npu.shapes' must be object, found 1"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest_is_refused_at_once_by_its_field(case: str, demo_package: Package):
    change, message = HOSTILE[case]
    text = _changed(demo_package, change)
    begin = time.monotonic()
    with pytest.raises(PackageError) as refused:
        Manifest.from_json(Path("p.estream/manifest.json"), text)
    assert time.monotonic() - begin < 1
    assert re.match(rf"p.estream/manifest.json: .*{message}.*; convert the model again$", str(refused.value)), refused.value


@pytest.mark.parametrize("place", ["source", "more"])
def test_a_manifest_too_deep_to_be_parsed_is_refused(place: str, demo_package: Package):
    text = _text(demo_package).replace('{"format', f'{{"{place}":{"[" * 10**5}{"]" * 10**5},"format', 1)
    with pytest.raises(PackageError, match=r"^m: nested too deeply to be read; convert the model again$"):
        Manifest.from_json(Path("m"), text.encode())


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"format": "estream"', b"nul"])
def test_a_manifest_that_is_no_json_is_refused(text: bytes):
    with pytest.raises(PackageError, match=r"^m: not valid JSON"):
        Manifest.from_json(Path("m"), text)


def test_a_source_whose_name_is_not_utf8_is_no_obstacle(demo_package: Package):
    text = _changed(demo_package, _at("source.folder", "/models/\udcff"))
    assert Manifest.from_json(Path("m"), text).source["folder"] == "/models/\udcff"


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json", "resident.safetensors", "pages.bin"])
def test_a_pipe_or_a_device_in_a_package_is_refused_unread(name: str, demo_package: Package, tmp_path: Path):
    copy = shutil.copytree(demo_package.path, tmp_path / "copy.estream")
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (copy / name).unlink()
        make(copy / name)
        with pytest.raises(PackageError, match=f"{name}: .*not a regular file"):
            open_package(copy)


def test_a_file_larger_than_any_is_refused_unread(tmp_path: Path):
    path = tmp_path / "x"
    with open(path, "wb") as file:
        file.truncate(regular_file.LARGEST + 1)
    with pytest.raises(OSError, match=r"at most 256 MiB are expected"):
        regular_file.read_regular(path)


def test_a_source_that_became_a_device_has_changed(demo_package: Package, tmp_path: Path):
    copy = shutil.copytree(demo_package.path, tmp_path / "copy.estream")
    file = {"bytes": 0, "changed_ns": 0, "checksum": "0" * 16}
    change = _at("source", {"kind": "x", "name": "x", "folder": "/dev", "files": {"zero": file}})
    (copy / "manifest.json").write_bytes(_changed(demo_package, change))
    with pytest.raises(PackageError, match="/dev/zero has changed"):
        open_package(copy, "cpu")


@pytest.mark.parametrize("name", SHAPES)
def test_pages_are_counted_as_they_are_listed(name: str):
    config = family_of(SHAPES[name]).read_config(SHAPES[name])
    for model in (config, replace(config, dense_layers=(0,), intermediate_size=4096)):
        quantization = Quantization.choose(model, 4, 8, 64)
        assert count_pages(model, quantization, None) == len(list(tape_of(model, quantization, None)))


@pytest.mark.parametrize("name", SHAPES)
def test_configs_survive_their_json(name: str):
    config = family_of(SHAPES[name]).read_config(SHAPES[name])
    check_config(config)
    assert from_plain(json.loads(json.dumps(to_plain(config))), ModelConfig) == config


def test_a_config_that_no_package_could_hold_is_refused(demo_package: Package, tmp_path: Path):
    config = demo_package.manifest.config
    with pytest.raises(SchemaError, match="'model.norm_eps' must be float >= 0.0, found nan"):
        check_config(replace(config, norm_eps=math.nan))
    with pytest.raises(SchemaError, match="'model.moe.top_k' must be at most"):
        check_config(replace(config, moe=replace(config.moe, top_k=17)))
    spec = PackageSpec("cpu", replace(config, norm_eps=math.nan), demo_package.manifest.quantization, "bfloat16", True, {})
    with (
        pytest.raises(PackageError, match="a package cannot hold this model: 'model.norm_eps'"),
        write_package(tmp_path / "x.estream", spec, force=False),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
