"""Bytes of a checkpoint's files."""

from pathlib import Path

import numpy as np
import pytest

from estream.checkpoint.source_file import read_bytes
from estream.errors import CheckpointError


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
