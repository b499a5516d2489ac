"""The conversion's pipeline: order, bounds, errors from either side, and what an interrupt leaves."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cgroup import estream_command, heed_interrupts
from layouts import SHAPE
from tiny import make_olmoe

from estream.checkpoint.huggingface import HfCheckpoint
from estream.checkpoint.source_file import read_bytes
from estream.conversion import convert as conversion
from estream.conversion.convert import convert
from estream.errors import CheckpointError, PackageError
from estream.host.read_ahead import LastResult, Limits, ReadAhead, WriteBehind
from estream.package.writer import PackageWriter


def nap() -> None:
    time.sleep(random.random() / 500)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith(("read-ahead", "write-behind"))] == []


def test_order_is_kept_and_what_is_ahead_is_bounded():
    lock, held, most, written = threading.Lock(), 0, 0, []

    def read(job: int) -> int:
        nonlocal held, most
        with lock:
            held += job
            most = max(most, held)
        nap()
        return job * job

    def write(job: int, result: int) -> None:
        nap()
        written.append((job, result))

    jobs = [random.randrange(1, 30) for _ in range(200)]
    with ReadAhead(jobs, read, lambda job: job, Limits(4, 50)) as ahead, WriteBehind(write) as out:
        for job, result in ahead:
            with lock:
                held -= job
            nap()
            out.put(job, result)
    assert written == [(job, job * job) for job in jobs]
    # What is ahead, and what the caller has in hand.
    assert most <= 50 + 30
    with ReadAhead([100, 200, 1], lambda job: -job, lambda job: job, Limits(2, 10)) as ahead:
        assert list(ahead) == [(100, -100), (200, -200), (1, -1)]


def fail_at(number: int):
    def work(job: int, _: int = 0) -> int:
        if job == number:
            raise ValueError(f"job {job}")
        return job

    return work


def test_an_error_of_either_side_reaches_the_caller():
    written: list[int] = []
    with pytest.raises(ValueError, match="job 7"), ReadAhead(range(20), fail_at(7), lambda _: 1, Limits(3, 9)) as ahead:
        written.extend(job for job, _ in ahead)
    assert written == list(range(7))

    def write_all(last: int) -> None:
        with WriteBehind(fail_at(5)) as out:
            for job in range(last + 1):
                out.put(job, 0)
                nap()

    for last in (5, 40):  # when the block ends, and before
        with pytest.raises(ValueError, match="job 5"):
            write_all(last)


def test_an_error_of_the_caller_ends_both_sides_and_nothing_more_is_written():
    written: list[int] = []

    def write(job: int, _: int) -> None:
        time.sleep(0.02)
        written.append(job)

    def work() -> None:
        with ReadAhead(range(100), fail_at(-1), lambda _: 1, Limits(3, 9)) as ahead, WriteBehind(write) as out:
            for job, _ in ahead:
                out.put(job, 0)
                if job == 4:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert written == list(range(len(written)))
    assert len(written) < 5


def test_the_last_result_is_read_once():
    read: list[str] = []
    last = LastResult(lambda job: read.append(job) or job)
    assert [last(job) for job in "aabbba"] == list("aabbba")
    assert read == ["a", "b", "a"]


def test_files_are_read_from_any_place(tmp_path: Path):
    data = np.random.default_rng(0).integers(0, 256, (3 << 20) + 77, dtype=np.uint8)
    (tmp_path / "x").write_bytes(data.tobytes())
    for offset, size in (
        (0, 10),
        (1, 4096),
        (4095, 2),
        (7, 3 << 20),
        (4096, 2 << 20),
        (data.size - 5, 5),
        (3, data.size - 3),
        (9, 0),
    ):
        np.testing.assert_array_equal(read_bytes(tmp_path / "x", offset, size), data[offset : offset + size])
    for offset, size in ((data.size - 5, 6), (0, data.size + 1), (data.size + 9000, 1)):
        with pytest.raises(CheckpointError, match="inside a tensor; the file is truncated"):
            read_bytes(tmp_path / "x", offset, size)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_bytes(tmp_path / "absent", 0, 1)


def test_a_package_does_not_depend_on_who_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make_olmoe(tmp_path / "source", SHAPE)
    expected = convert(tmp_path / "source", tmp_path / "a.estream")
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
