"""Embedding rows come whole, through any memory."""

import numpy as np
import pytest
from demo_answers import flip

from estream.engine.embedding import EmbeddingReader, scratch_bytes_per_row
from estream.engine.reads import Reads
from estream.errors import ReadError
from estream.host.sizes import KiB
from estream.package.package import Package


@pytest.mark.parametrize("room", [1, 3, 100, 1000])
def test_embedding_rows_come_whole_through_any_memory_and_a_damaged_one_is_named(demo_copy: Package, room: int):
    record = demo_copy.manifest.embedding_record_bytes
    memory = np.zeros((room * scratch_bytes_per_row(record) + 4096,), np.uint8)
    begin = -memory.ctypes.data % 4096
    memory = memory[begin : begin + room * scratch_bytes_per_row(record)]
    reader = demo_copy.open_reader(3, 64 * KiB, True)
    reads = Reads(reader, [demo_copy.pages_path, demo_copy.embedding_path])
    ids = np.random.default_rng(room).integers(0, 700, 900).astype(np.int32)
    out = np.empty((900, demo_copy.manifest.config.hidden), np.float32)

    def read() -> None:
        EmbeddingReader(demo_copy, reads, ids, memory).finish(out)

    read()
    rows = np.fromfile(demo_copy.embedding_path, np.uint8, 700 * record).reshape(700, record)[:, :-8]
    assert demo_copy.manifest.embedding_dtype == "bfloat16"
    np.testing.assert_array_equal(out.view(np.uint32), rows.copy().view(np.uint16).astype(np.uint32)[ids] << 16)
    damaged = int(ids[450])
    flip(demo_copy.embedding_path, damaged * record + 7)
    with pytest.raises(ReadError, match=rf"embedding row {damaged} at offset {damaged * record}: wrong checksum"):
        read()
