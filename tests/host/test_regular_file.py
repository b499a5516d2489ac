"""Small files: whole, or their checksum alone; nothing but files, and nothing larger than expected."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from estream import _native
from estream.host.regular_file import checksum_regular, read_regular
from estream.host.sizes import MiB

SIZES = [0, 1, MiB - 1, MiB, MiB + 1, 5 * MiB + 7]


@pytest.mark.parametrize("size", SIZES)
def test_the_checksum_of_a_file_is_that_of_its_bytes(size: int, tmp_path: Path):
    file = tmp_path / "file"
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    file.write_bytes(data)
    assert read_regular(file) == data.tobytes()
    assert checksum_regular(file) == _native.checksum(data)


def test_a_checksum_takes_little_memory(tmp_path: Path):
    file = tmp_path / "file"
    with open(file, "wb") as handle:
        handle.truncate(64 * MiB)
    tracemalloc.start()
    try:
        checksum_regular(file)
        assert tracemalloc.get_traced_memory()[1] < 4 * MiB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [read_regular, checksum_regular])
def test_what_is_no_file_or_too_large_is_refused(read, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read(path)
    (tmp_path / "file").write_bytes(bytes(5000))
    with pytest.raises(OSError, match="at most 4 KiB are expected"):
        read(tmp_path / "file", 4096)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")
