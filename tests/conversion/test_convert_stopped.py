"""Conversion side by side: who is faster changes nothing, and what is stopped in the middle leaves nothing."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cgroup import estream_command, heed_interrupts, memory_group
from layouts import SHAPE
from pipelines import naps, threads_left
from tiny import make_olmoe

from estream.checkpoint.huggingface import HfCheckpoint
from estream.conversion import convert as conversion
from estream.conversion import memory
from estream.conversion.convert import ConvertOptions, convert
from estream.errors import BudgetError, PackageError
from estream.host import system
from estream.host.read_ahead import Limits
from estream.package import writer as writing
from estream.package.writer import PackageWriter


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert threads_left() == []


def test_a_package_does_not_depend_on_who_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_olmoe(tmp_path / "source", SHAPE)
    expected = convert(tmp_path / "source", tmp_path / "a.estream")
    nap = naps(4)
    read, write = HfCheckpoint.read_rows, PackageWriter.add_page
    monkeypatch.setattr(HfCheckpoint, "read_rows", lambda *args: (nap(), read(*args))[1])
    monkeypatch.setattr(PackageWriter, "add_page", lambda *args: (nap(), write(*args))[1])
    for workers, size in ((1, 1), (8, 1 << 30)):
        monkeypatch.setattr(conversion, "READING", Limits(workers, size))
        package = convert(tmp_path / "source", tmp_path / f"{workers}.estream")
        for name in ("pages.bin", "embedding.bin"):
            assert (package.path / name).read_bytes() == (expected.path / name).read_bytes()


def test_an_error_in_the_middle_of_a_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_olmoe(tmp_path / "source", SHAPE)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PackageWriter, "add_page", full)
    with pytest.raises(PackageError, match="the disk is full"):
        convert(tmp_path / "source", tmp_path / "out.estream")
    assert os.listdir(tmp_path) == ["source"]


def test_control_c_while_converting_leaves_nothing(tmp_path: Path):
    make_olmoe(tmp_path / "source", SHAPE | {"hidden_size": 512, "intermediate_size": 512, "num_experts": 32})
    # Slow packing, so that the signal comes in the middle wherever this runs.
    program = (
        "import sys, time; from estream.quantization.packing import PagePacker; from estream.cli.main import main\n"
        "page = PagePacker.page\n"
        "PagePacker.page = lambda *args: (time.sleep(0.2), page(*args))[1]\n"
        "main()"
    )
    command = [sys.executable, "-c", program, *estream_command("convert", tmp_path / "source", tmp_path / "out.estream")[3:]]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.estream.partial-*/pages.bin")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize(
    "when", ["mkdir", "hold_folder", "disk_usage", "DirectFile", "next", "_finish", "_put_in_place", "rename"]
)
def test_an_interrupt_at_any_point_leaves_nothing(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_olmoe(tmp_path / "source", SHAPE)
    before = convert(tmp_path / "source", tmp_path / "out.estream").pages_path.read_bytes()
    where, name = {
        "mkdir": (Path, "mkdir"),
        "hold_folder": (system, "hold_folder"),
        "disk_usage": (shutil, "disk_usage"),
        "DirectFile": (writing, "DirectFile"),
        "next": (PackageWriter, "add_final_norm"),
        "_finish": (PackageWriter, "_finish"),
        "_put_in_place": (writing, "_put_in_place"),
        "rename": (Path, "rename"),
    }[when]
    real = getattr(where, name)

    def interrupted(*args: object, **options: object) -> object:
        """Ctrl-C comes when the call has done its work, the first time."""
        monkeypatch.undo()
        real(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(where, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "source", tmp_path / "out.estream", ConvertOptions(force=True))
    assert sorted(os.listdir(tmp_path)) == ["out.estream", "source"]
    assert (tmp_path / "out.estream/pages.bin").read_bytes() == before


@pytest.mark.parametrize("limit", [80, 100, 120])
def test_what_does_not_fit_is_refused_by_name(limit: int, tmp_path: Path):
    wide = {"hidden_size": 1536, "intermediate_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 12}
    make_olmoe(tmp_path / "source", SHAPE | wide | {"num_experts": 4})
    with memory_group(limit << 20) as group:
        done = group.run(estream_command("convert", tmp_path / "source", tmp_path / "out.estream"))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert "converting needs" in done.stderr
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize("text", [False, True])
def test_what_is_read_page_by_page_is_the_same(text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_olmoe(tmp_path / "source", SHAPE)
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(0, 330, 2100))
    options = ConvertOptions(8, calibrate=tmp_path / "ids.npy" if text else None)
    expected = convert(tmp_path / "source", tmp_path / "a.estream", options)
    pace = memory.choose_pace

    def careful(*args: object) -> memory.Pace:
        """With less and less memory, until it suffices for no more than this."""
        for free in range(32 << 20, 28 << 20, -(1 << 10)):
            monkeypatch.setattr(memory.limits, "free_bytes", lambda free=free: free)
            if (found := pace(*args)).waiting == 1:
                return found
        raise AssertionError

    monkeypatch.setattr(conversion, "choose_pace", careful)
    package = convert(tmp_path / "source", tmp_path / "b.estream", options)
    assert package.manifest == expected.manifest
    for name in ("pages.bin", "embedding.bin"):
        assert (package.path / name).read_bytes() == (expected.path / name).read_bytes()


def test_a_text_needs_room_for_pages_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wide = {"hidden_size": 1024, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8}
    make_olmoe(tmp_path / "source", SHAPE | wide | {"num_experts": 4})
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(0, 330, 2100))
    pace = memory.choose_pace

    def without_memory(*args: object) -> memory.Pace:
        with monkeypatch.context() as patch:
            for name in ("free_bytes", "resident_bytes"):
                patch.setattr(memory.limits, name, lambda: 0)
            return pace(*args)

    def needed(bits: int, text: Path | None) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(conversion, "choose_pace", without_memory)
            with pytest.raises(BudgetError, match="converting needs") as refused:
                convert(tmp_path / "source", tmp_path / "out.estream", ConvertOptions(bits, calibrate=text))
        return refused.value.floor_bytes

    plain, text, chosen = needed(8, None), needed(8, tmp_path / "ids.npy"), needed(4, tmp_path / "ids.npy")
    assert sorted(os.listdir(tmp_path)) == ["ids.npy", "source"]
    page = max(p.bytes for p in convert(tmp_path / "source", tmp_path / "out.estream", ConvertOptions(8)).manifest.tape)
    assert text - plain > page
    # Calibration computes with two models, of which one has 8 bits.
    assert chosen - needed(4, None) > 3 * page
