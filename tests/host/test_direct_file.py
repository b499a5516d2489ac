"""Files are written and read once past the page cache, or through it where a file system refuses that, at whatever time."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cgroup import estream_command
from paths import DEMO
from preloaded import NO_DIRECT, build

from estream.host import system
from estream.host.buffers import BufferPool
from estream.host.direct_file import DirectFile
from estream.host.sizes import MiB
from estream.package.package import Package

SAID = "no direct I/O, so files are read and written through the page cache"


@pytest.mark.parametrize("at", ["open", "read", "write", "read write", "neither"])
def test_a_file_system_may_refuse_direct_io_at_any_time(at: str, demo_package: Package, tmp_path: Path):
    library = build(NO_DIRECT, tmp_path)
    env = os.environ | {"LD_PRELOAD": str(library), "REFUSED_AT": at}
    command = estream_command("convert", DEMO, tmp_path / "x.estream")
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count(SAID) == (at not in ("open", "neither"))
    for name in ("pages.bin", "embedding.bin"):
        assert (tmp_path / "x.estream" / name).read_bytes() == (demo_package.path / name).read_bytes()


@pytest.fixture(params=[True, False], ids=["direct", "buffered"])
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not request.param:
        monkeypatch.setattr(system.os, "O_DIRECT", 0)
    return tmp_path / "file"


def test_pieces_of_any_size_and_address_arrive_in_order(file: Path):
    rng = np.random.default_rng(3)
    aligned = BufferPool(0).take(3 * MiB)
    aligned[:] = rng.integers(0, 256, aligned.size, np.uint8)
    pieces = [rng.integers(0, 256, size, np.uint8) for size in (1, 4095, 4096, 9 * MiB, 0, 77)]
    # Aligned data goes past the buffer only where the buffer is at a block's end: once before it, once behind.
    pieces += [aligned, rng.integers(0, 256, 4096 - 78, np.uint8), aligned, aligned[4096:], aligned[1:], aligned[: MiB + 100]]
    with DirectFile(file) as out:
        for piece in pieces:
            out.write(piece)
        out.pad(4096)
        length = out.length
        out.sync()
    written = file.read_bytes()
    data = b"".join(piece.tobytes() for piece in pieces)
    assert len(written) == length == -(-len(data) // 4096) * 4096
    assert written[: len(data)] == data
    assert not any(written[len(data) :])


def test_short_writes_go_on_where_they_ended(file: Path, monkeypatch: pytest.MonkeyPatch):
    data = BufferPool(0).take(2 * MiB)
    data[:] = np.random.default_rng(4).integers(0, 256, data.size, np.uint8)
    real, sizes = system.write_once, iter([4096, 5000, 100, 12288])

    def short(handle: int, part: memoryview) -> int:
        begin, size = os.lseek(handle, 0, os.SEEK_CUR), next(sizes, len(part))
        real(handle, part)
        os.lseek(handle, begin + size, os.SEEK_SET)
        return size

    monkeypatch.setattr(system, "write_once", short)
    with DirectFile(file) as out:
        out.write(data)
        out.sync()
    assert next(sizes, None) is None
    assert file.read_bytes() == data.tobytes()
