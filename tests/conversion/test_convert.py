"""Conversion: what it refuses, what it leaves behind, and where checkpoints come from."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hub_server import HubServer
from paths import DEMO
from peak import peak_bytes
from safetensors.numpy import load_file, save_file
from tiny import OLMOE_SHAPES, make_olmoe

import estream
from estream.conversion.convert import ConvertOptions, convert
from estream.errors import CheckpointError, OptionError, PackageError
from estream.package import writer
from estream.package.package import open_package
from estream.package.verify import verify
from estream.quantization.float_parts import interleave_gate_up

SHAPE = OLMOE_SHAPES["8 experts, grouped queries"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    make_olmoe(tmp_path / "source", SHAPE)
    return tmp_path / "source"


def _files(package) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in package.path.iterdir() if p.name != "manifest.json"}


def test_equal_sources_give_equal_packages_in_every_layout(tmp_path: Path):
    """Sharded or not, experts fused or apart: the same bytes."""
    make_olmoe(tmp_path / "one", SHAPE)
    make_olmoe(tmp_path / "sharded", SHAPE, max_shard_size="100KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    shutil.copytree(tmp_path / "sharded", tmp_path / "no-index")
    (tmp_path / "no-index/model.safetensors.index.json").unlink()
    _fuse(tmp_path / "one", tmp_path / "fused")
    packages = [convert(tmp_path / name, tmp_path / f"{name}.estream") for name in ("one", "sharded", "no-index", "fused")]
    for package in packages[1:]:
        assert _files(package) == _files(packages[0])


def _fuse(source: Path, to: Path) -> None:
    """The layout in which transformers 5 holds experts: [experts, 2 * width, hidden], gate first."""
    tensors = load_file(source / "model.safetensors")
    result = {name: value for name, value in tensors.items() if ".experts." not in name}
    for layer in range(3):
        prefix = f"model.layers.{layer}.mlp.experts."
        parts = {n: np.stack([tensors[f"{prefix}{e}.{n}_proj.weight"] for e in range(8)]) for n in ("gate", "up", "down")}
        result[f"{prefix}gate_up_proj"] = np.concatenate([parts["gate"], parts["up"]], 1)
        result[f"{prefix}down_proj"] = parts["down"]
    to.mkdir()
    save_file(result, to / "model.safetensors", {"format": "pt"})
    for name in ("config.json", "generation_config.json"):
        shutil.copy(source / name, to)


def test_gate_and_up_alternate_by_sixteen():
    assert interleave_gate_up(20, 64).tolist() == [
        *range(16), *range(20, 36), *range(16, 20), *[-1] * 12, *range(36, 40), *[-1] * 12,
    ]  # fmt: skip


def _edit(source: Path, change) -> None:
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})


def _config(source: Path, **values) -> None:
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | values))


def test_a_tied_head_that_is_stored_again_is_ignored_and_a_missing_one_is_an_error(tmp_path: Path):
    tied = SHAPE | {"tie_word_embeddings": True}
    make_olmoe(tmp_path / "tied", tied)
    shutil.copytree(tmp_path / "tied", tmp_path / "twice")
    _edit(tmp_path / "twice", lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].copy()}))
    assert _files(convert(tmp_path / "tied", tmp_path / "a.estream")) == _files(
        convert(tmp_path / "twice", tmp_path / "b.estream")
    )
    _config(tmp_path / "tied", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match="'lm_head.weight' is missing"):
        convert(tmp_path / "tied", tmp_path / "c.estream")


def test_a_tied_head_that_is_stored_with_other_values_is_refused(tmp_path: Path):
    make_olmoe(tmp_path / "source", SHAPE | {"tie_word_embeddings": True})
    _edit(tmp_path / "source", lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] * np.float32(1.01)}))
    with pytest.raises(CheckpointError, match="'lm_head.weight' differs from 'model.embed_tokens.weight'"):
        convert(tmp_path / "source", tmp_path / "a.estream")
    _config(tmp_path / "source", tie_word_embeddings=False)
    assert not convert(tmp_path / "source", tmp_path / "a.estream").manifest.config.tied_head


def test_half_precision_sources_give_what_their_values_say(tmp_path: Path):
    model = make_olmoe(tmp_path / "float32", SHAPE)
    for dtype in ("bfloat16", "float16"):
        import torch

        half = model.to(getattr(torch, dtype))
        half.save_pretrained(tmp_path / dtype)
        half.float().save_pretrained(tmp_path / f"{dtype}-as-float32")
        a = convert(tmp_path / dtype, tmp_path / f"{dtype}.estream")
        b = convert(tmp_path / f"{dtype}-as-float32", tmp_path / f"{dtype}-32.estream")
        assert (a.path / "pages.bin").read_bytes() == (b.path / "pages.bin").read_bytes()
        with estream.load(a.path) as one, estream.load(b.path) as two:
            np.testing.assert_array_equal(one.prefill([1, 2, 3]).logits, two.prefill([1, 2, 3]).logits)


def test_a_package_is_replaced_only_by_force_and_only_a_package(source: Path, tmp_path: Path):
    target = tmp_path / "out.estream"
    convert(source, target)
    with pytest.raises(PackageError, match="exists already; --force"):
        convert(source, target)
    convert(source, target, ConvertOptions(bits=8, force=True))
    (tmp_path / "mine").mkdir()
    with pytest.raises(PackageError, match="is not an estream package, so it is not replaced"):
        convert(source, tmp_path / "mine", ConvertOptions(force=True))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "out.estream", "source"]


@pytest.mark.parametrize("target", ["/proc/out.estream", "no/such/folder/out.estream"])
def test_an_unwritable_target_is_one_clear_error(source: Path, target: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PackageError, match=target.split("/")[1]):
        convert(source, target)


def test_a_full_disk_is_refused_before_and_during_writing(source: Path, tmp_path: Path, monkeypatch):
    mount = tmp_path / "small"
    mount.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", mount], check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        with pytest.raises(PackageError, match="the package needs .* are free"):
            convert(source, mount / "out.estream")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40))
        with pytest.raises(PackageError, match="the disk is full"):
            convert(source, mount / "out.estream")
        assert list(mount.iterdir()) == []
    finally:
        subprocess.run(["umount", mount], check=True)


def test_options_are_checked(source: Path, tmp_path: Path):
    for options, message in (
        (ConvertOptions(bits=5), "--bits"),
        (ConvertOptions(group=48), "--group"),
        (ConvertOptions(device="gpu"), "--device"),
    ):
        with pytest.raises(OptionError, match=message):
            convert(source, tmp_path / "out.estream", options)


_PROGRAM = "import sys; from estream.cli.main import main; main()"


def test_a_killed_conversion_leaves_no_package_or_a_whole_one(tmp_path: Path):
    target = tmp_path / "out.estream"
    outcomes = set()
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", _PROGRAM, "convert", DEMO, target], check=True, capture_output=True)
    whole = time.monotonic() - begin
    shutil.rmtree(target)
    for step in range(12):
        process = subprocess.Popen([sys.executable, "-c", _PROGRAM, "convert", DEMO, target], stdout=subprocess.DEVNULL)
        time.sleep(whole * (0.3 + 0.07 * step))
        process.send_signal(signal.SIGKILL)
        process.wait()
        outcomes.add(target.exists())
        if target.exists():
            with estream.load(target) as model:
                model.prefill([1])
            shutil.rmtree(target)
    assert False in outcomes
    # The next conversion clears away what was left.
    convert(DEMO, target)
    assert [p.name for p in tmp_path.iterdir()] == ["out.estream"]


def test_a_package_moved_aside_by_a_killed_replacement_comes_back(source: Path, tmp_path: Path):
    package = convert(source, tmp_path / "out.estream")
    before = _files(package)
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / "out.estream").rename(tmp_path / f".out.estream.partial-{dead.pid}-x.old")
    with pytest.raises(PackageError, match="exists already"):
        convert(source, tmp_path / "out.estream")
    assert _files(package) == before


def test_a_package_that_appears_at_the_last_moment_is_kept(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    convert(source, tmp_path / "other.estream")
    check, destination, checks = writer._check_destination, tmp_path / "out.estream", 0

    def check_before_the_other_arrives(path: Path, force: bool) -> None:
        nonlocal checks
        check(path, force)
        checks += 1
        if checks == 2:
            (tmp_path / "other.estream").rename(destination)

    monkeypatch.setattr(writer, "_check_destination", check_before_the_other_arrives)
    with pytest.raises(PackageError, match="exists already"):
        convert(source, destination)
    assert checks == 2
    open_package(destination)
    assert sorted(os.listdir(tmp_path)) == ["out.estream", "source"]


def test_conversions_at_once_leave_one_whole_package(source: Path, tmp_path: Path):
    """From threads of one process, which share its id: one wins, the others are refused."""
    results: list[str] = []

    def work() -> None:
        try:
            convert(source, tmp_path / "out.estream")
            results.append("made")
        except PackageError as error:
            results.append("refused" if "exists already" in str(error) else str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["made", "refused", "refused", "refused"]
    assert verify(open_package(tmp_path / "out.estream")).damaged == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.estream", "source"]


def test_a_package_is_readable_for_whom_the_umask_says(source: Path, tmp_path: Path):
    package = convert(source, tmp_path / "out.estream")
    assert {oct(p.stat().st_mode & 0o777) for p in package.path.iterdir()} == {"0o644"}
    assert package.path.stat().st_mode & 0o777 == 0o755


def test_a_link_is_followed(source: Path, tmp_path: Path):
    convert(source, tmp_path / "real.estream")
    (tmp_path / "link.estream").symlink_to("real.estream")
    convert(source, tmp_path / "link.estream", ConvertOptions(bits=8, force=True))
    assert open_package(tmp_path / "real.estream").manifest.quantization.expert_bits == 8
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.estream", "real.estream", "source"]


def test_a_hub_id_is_fetched_and_converted(source: Path, tmp_path: Path):
    with HubServer("owner/tiny-moe", source) as server:
        env = os.environ | {
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(tmp_path / "hub"),
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "*",
        }
        command = [sys.executable, "-c", _PROGRAM, "convert"]
        subprocess.run([*command, "owner/tiny-moe", tmp_path / "hub.estream"], env=env, check=True, capture_output=True)
        failed = subprocess.run(
            [*command, "owner/absent", tmp_path / "x.estream"], env=env, capture_output=True, text=True, check=False
        )
    assert failed.returncode == 1
    assert failed.stderr.startswith("estream: error: owner/absent: no such folder here, and the hub did not give it")
    assert len(failed.stderr.splitlines()) == 1
    local = convert(source, tmp_path / "local.estream")
    assert (tmp_path / "hub.estream/pages.bin").read_bytes() == (local.path / "pages.bin").read_bytes()


def test_conversion_holds_one_matrix_at_a_time(tmp_path: Path):
    """Peak memory of a conversion stays far below the size of the checkpoint."""
    wide = SHAPE | {"hidden_size": 512, "intermediate_size": 512, "num_experts": 32, "vocab_size": 8000}
    make_olmoe(tmp_path / "source", wide)
    size = (tmp_path / "source/model.safetensors").stat().st_size
    setup, body = "from estream.conversion.convert import convert", "convert(sys.argv[1], sys.argv[2])"
    assert size > 300e6
    assert peak_bytes(setup, body, tmp_path / "source", tmp_path / "out.estream") < 80e6
