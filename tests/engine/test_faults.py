"""Damaged, truncated and replaced packages, failing and interrupted reads: a clear error or the right answer, never a
wrong one, and the model stays usable."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cgroup import estream_command, heed_interrupts

import estream
from estream.api.model import Model
from estream.engine.embedding import EmbeddingReader, scratch_bytes_per_row
from estream.engine.options import LoadOptions
from estream.engine.reads import Reads
from estream.errors import CancelledError, ReadError
from estream.host.sizes import KiB
from estream.package.package import Package, open_package

IDS = list(range(40, 100))


@pytest.fixture(scope="module")
def expected(demo_package: Package) -> np.ndarray:
    with estream.load(demo_package.path) as model:
        return model.prefill(IDS).logits


@pytest.fixture
def copy(demo_package: Package, tmp_path: Path) -> Package:
    return open_package(shutil.copytree(demo_package.path, tmp_path / "a copy.estream"))


def _streaming(package: Package) -> Model:
    return Model(package, LoadOptions(threads=1, lanes=2, request_bytes=64 * KiB))


def _flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def _check(model: Model, expected: np.ndarray) -> bool:
    """True for the right answer, False for a clear error; a wrong answer fails."""
    try:
        result = model.prefill(IDS)
    except ReadError as error:
        message = str(error)
    else:
        np.testing.assert_array_equal(result.logits, expected)
        return True
    assert ".bin: " in message
    assert " at offset " in message
    return False


def test_a_flipped_bit_anywhere_is_an_error_or_harmless_and_the_model_recovers(copy: Package, expected: np.ndarray):
    rng, outcomes = random.Random(0), []
    for _ in range(100):
        path = rng.choice([copy.pages_path] * 5 + [copy.embedding_path])
        offset = rng.randrange(path.stat().st_size)
        _flip(path, offset)
        with _streaming(copy) as model:
            outcomes.append(_check(model, expected))
            _flip(path, offset)
            assert _check(model, expected)
    assert outcomes.count(False) > 50


def test_the_message_names_file_page_and_offset(copy: Package):
    page = next(p for p in copy.manifest.tape if p.spec.kind == "attention" and p.spec.layer == 3)
    _flip(copy.pages_path, page.offset + 1000)
    with _streaming(copy) as model, pytest.raises(ReadError) as error:
        model.prefill(IDS)
    assert str(error.value) == (
        f"{copy.pages_path}: layer 3 attention at offset {page.offset}: wrong checksum, the bytes on disk are damaged; "
        "convert the model again"
    )


def test_a_flipped_embedding_row_is_named(copy: Package):
    record = copy.manifest.embedding_record_bytes
    _flip(copy.embedding_path, 57 * record + 3)
    with _streaming(copy) as model:
        with pytest.raises(ReadError, match=rf"embedding row 57 at offset {57 * record}: wrong checksum"):
            model.prefill(IDS)
        assert model.prefill([1, 2, 3]).logits.shape == (8192,)


def test_a_file_truncated_after_loading_is_an_error_until_it_is_whole_again(copy: Package, expected: np.ndarray):
    rng, whole = random.Random(1), copy.pages_path.read_bytes()
    for _ in range(40):
        with _streaming(copy) as model:
            os.truncate(copy.pages_path, rng.randrange(len(whole)))
            assert not _check(model, expected)
            copy.pages_path.write_bytes(whole)
            assert _check(model, expected)


def test_a_replaced_file_is_not_seen_by_a_loaded_model(copy: Package, expected: np.ndarray):
    """The lanes hold the old file open, so what replaces it by renaming cannot mix with it."""
    with _streaming(copy) as model:
        other = copy.path / "other"
        other.write_bytes(bytes(copy.pages_path.stat().st_size))
        other.rename(copy.pages_path)
        assert _check(model, expected)
    with _streaming(copy) as model:
        assert not _check(model, expected)


def test_a_file_that_changes_while_it_is_read_never_gives_a_wrong_answer(copy: Package, expected: np.ndarray):
    stop = threading.Event()

    def vandal() -> None:
        rng = random.Random(2)
        while not stop.is_set():
            offset = rng.randrange(copy.pages_path.stat().st_size)
            _flip(copy.pages_path, offset)
            time.sleep(0.002)
            _flip(copy.pages_path, offset)

    thread = threading.Thread(target=vandal)
    thread.start()
    try:
        for _ in range(40):
            with _streaming(copy) as model:
                _check(model, expected)
    finally:
        stop.set()
        thread.join()


FAULTY_READS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
// One in FAULT_EVERY reads of large files fails in the way that FAULT names.
ssize_t pread64(int fd, void *buffer, size_t bytes, off_t offset) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  static unsigned long calls;
  if (!real) real = (ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64");
  const char *fault = getenv("FAULT");
  struct stat s;
  if (!fault || fstat(fd, &s) || s.st_size < 4000000) return real(fd, buffer, bytes, offset);
  unsigned long call = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  if (call % strtoul(getenv("FAULT_EVERY"), 0, 10)) return real(fd, buffer, bytes, offset);
  if (!strcmp(fault, "eio")) { errno = EIO; return -1; }
  if (!strcmp(fault, "eintr")) { errno = EINTR; return -1; }
  if (!strcmp(fault, "short")) return real(fd, buffer, bytes > 4096 ? 4096 : bytes, offset);
  if (!strcmp(fault, "odd")) return real(fd, buffer, bytes, offset) > 9000 ? 4999 : (ssize_t)bytes;
  if (!strcmp(fault, "end")) return 0;
  return real(fd, buffer, bytes, offset);
}
ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) { return pread64(fd, buffer, bytes, offset); }
"""

PROGRAM = """
import os, sys, numpy as np, estream
from estream.engine.embedding import EmbeddingReader, scratch_bytes_per_row
from estream.api.model import Model
from estream.engine.options import LoadOptions
from estream.engine.reads import Reads
from estream.package.package import open_package
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
model = Model(open_package(sys.argv[1]), LoadOptions(threads=1, lanes=4, request_bytes=65536))
try:
    model.prefill(list(range(40, 100)))
    print("answered")
except estream.errors.ReadError as error:
    print("refused:", error)
del os.environ["FAULT"]
np.save(sys.argv[2], model.prefill(list(range(40, 100))).logits)
assert threads() == before + 4
model.close()
print("threads left:", threads() - before)
"""


@pytest.fixture(scope="module")
def faulty_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.c").write_text(FAULTY_READS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "faults.so", folder / "faults.c", "-ldl"], check=True)
    return folder / "faults.so"


@pytest.mark.parametrize(
    ("fault", "every", "message"),
    [
        ("eio", 20, "the system could not read it (Input/output error)"),
        ("eio", 1, "the system could not read it (Input/output error)"),
        ("end", 20, "the file ends before the page does"),
        ("end", 3, "the file ends before the page does"),
        ("eintr", 2, None),
        ("eintr", 9, None),
        ("short", 2, None),
        ("short", 7, None),
        ("odd", 3, None),
        ("odd", 8, None),
    ],
)
def test_faults_of_the_system_are_survived_or_named(fault, every, message, demo_package, faulty_library, expected, tmp_path):
    env = os.environ | {"LD_PRELOAD": str(faulty_library), "FAULT": fault, "FAULT_EVERY": str(every)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, demo_package.path, tmp_path / "logits.npy"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    first, last = run.stdout.splitlines()
    if message is None:
        assert first == "answered"
    else:
        assert first.startswith(f"refused: {demo_package.path}/")
        assert message in first
    np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), expected)
    assert last == "threads left: 0"


@pytest.mark.parametrize("room", [1, 3, 100, 1000])
def test_embedding_rows_come_whole_through_any_memory_and_a_damaged_one_is_named(copy: Package, room: int):
    record = copy.manifest.embedding_record_bytes
    memory = np.zeros((room * scratch_bytes_per_row(record) + 4096,), np.uint8)
    begin = -memory.ctypes.data % 4096
    memory = memory[begin : begin + room * scratch_bytes_per_row(record)]
    reader = copy.open_reader(3, 64 * KiB, True)
    reads = Reads(reader, [copy.pages_path, copy.embedding_path])
    ids = np.random.default_rng(room).integers(0, 700, 900).astype(np.int32)
    out = np.empty((900, copy.manifest.config.hidden), np.float32)

    def read() -> None:
        EmbeddingReader(copy, reads, ids, memory).finish(out)

    read()
    rows = np.fromfile(copy.embedding_path, np.uint8, 700 * record).reshape(700, record)[:, :-8]
    assert copy.manifest.embedding_dtype == "bfloat16"
    np.testing.assert_array_equal(out.view(np.uint32), rows.copy().view(np.uint16).astype(np.uint32)[ids] << 16)
    damaged = int(ids[450])
    _flip(copy.embedding_path, damaged * record + 7)
    with pytest.raises(ReadError, match=rf"embedding row {damaged} at offset {damaged * record}: wrong checksum"):
        read()


def test_an_interrupt_stops_and_leaves_the_model_usable(demo_package: Package, expected: np.ndarray):
    with _streaming(demo_package) as model:
        original, calls = model._device.experts, []

        def interrupted(pages):
            calls.append(pages)
            if len(calls) == 5:
                raise KeyboardInterrupt
            original(pages)

        model._device.experts = interrupted
        with pytest.raises(KeyboardInterrupt):
            model.prefill(IDS)
        model._device.experts = original
        np.testing.assert_array_equal(model.prefill(IDS).logits, expected)


@pytest.mark.parametrize("resident", [False, True])
def test_a_cancelled_sweep_stops_at_its_next_run_of_pages(demo_package: Package, expected: np.ndarray, resident: bool):
    with _streaming(demo_package) as model:
        if resident:
            model.prefill(IDS)
        original, calls = model._device.experts, []

        def slow(pages):
            calls.append(pages)
            if len(calls) == 5:
                model.cancel()
            original(pages)

        model._device.experts = slow
        with pytest.raises(CancelledError):
            model.prefill(IDS)
        assert len(calls) == 5
        if resident:
            assert max(map(len, calls)) > 1
        model._device.experts = original
        np.testing.assert_array_equal(model.prefill(IDS).logits, expected)


def test_control_c_ends_the_command_line_without_a_traceback(demo_package: Package):
    process = subprocess.Popen(
        estream_command("run", demo_package.path, "--tokens", "500", "--repeat", "100000"),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    try:
        # The reader lanes are there: the sweeps have begun.
        deadline = time.monotonic() + 60
        while len(os.listdir(f"/proc/{process.pid}/task")) < 5 and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_file_systems_without_direct_reads_work_and_say_so(demo_package: Package, expected: np.ndarray, tmp_path: Path):
    mount = Path("/dev/shm") / f"estream test {os.getpid()}"
    shutil.copytree(demo_package.path, mount)
    try:
        for path in mount.iterdir():
            path.chmod(0o444)
        mount.chmod(0o555)
        with estream.load(mount) as model:
            result = model.prefill(IDS)
        np.testing.assert_array_equal(result.logits, expected)
        assert result.stats.direct_io in (True, False)
    finally:
        mount.chmod(0o755)
        shutil.rmtree(mount)
    buffered = Model(demo_package, LoadOptions(direct_io=False))
    with buffered as model:
        result = model.prefill(IDS)
    assert result.stats.direct_io is False
    np.testing.assert_array_equal(result.logits, expected)
