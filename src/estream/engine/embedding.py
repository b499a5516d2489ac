"""Embedding rows: only those that a batch names, each once, read by the lanes."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from estream import _native
from estream.engine.reads import EMBEDDING_FILE, Reads
from estream.errors import ReadError
from estream.host.sizes import round_up
from estream.package.package import Package

#: Offsets and lengths of direct reads that are smaller than a page.
_BLOCK = 4096
#: Rows that are read, checked and widened together.
_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class _Part:
    """Some of the unique ids from ``first`` on: their read, which of the parts' places in memory it has, and where each
    record will lie.
    """

    first: int
    rows: np.ndarray
    place: int
    ticket: int
    offsets: np.ndarray


class EmbeddingReader:
    """Reads the rows of one batch into scratch memory, then converts them to the dtype of the residual.

    Making it asks for the rows, so that they come before any page; :meth:`finish` waits for them.
    """

    def __init__(self, package: Package, reads: Reads, ids: np.ndarray, memory: np.ndarray) -> None:
        """Ask for the rows of int32 ``ids``. ``memory`` is uint8 scratch, which nobody touches until ``finish``."""
        self._path = package.embedding_path
        self._manifest = package.manifest
        self._reads = reads
        self._memory, self._address = memory, int(memory.ctypes.data)
        self._unique, self._inverse, self._counts = np.unique(ids, return_inverse=True, return_counts=True)
        # Tokens in the order of their ids; those of the unique id i end at _ends[i].
        self._by_id, self._ends = np.argsort(self._inverse, kind="stable"), np.cumsum(self._counts)
        per_row = scratch_bytes_per_row(self._manifest.embedding_record_bytes)
        self._part_rows = min(_ROWS_AT_ONCE, max(1, len(memory) // per_row))
        self._part_bytes = self._part_rows * per_row
        self._asked, self._parts = 0, deque[_Part]()
        #: Bytes asked for so far.
        self.bytes = 0
        for place in range(max(1, len(memory) // self._part_bytes)):
            self._ask(place)

    def finish(self, out: np.ndarray) -> None:
        """Fill ``out`` [tokens, hidden] of any floating dtype, part by part while others are still being read.

        Raises:
            ReadError: the file could not be read, or a row's checksum is wrong.

        """
        m = self._manifest
        # Made once: fresh memory for each part would cost more than the work on it.
        raw = np.empty((_ROWS_AT_ONCE, m.embedding_row_bytes), np.uint8)
        wide, gathered = np.empty((2, _ROWS_AT_ONCE, out.shape[1]), np.float32)
        while self._parts:
            part = self._parts.popleft()
            begin = self._reads.clock()
            self._reads.wait(part.ticket, EMBEDDING_FILE, "embedding rows")
            self._reads.stalled(begin, "embedding", "embedding rows")
            self._open(part, raw[: len(part.rows)])
            self._ask(part.place)
            _widen_into(wide[: len(part.rows)], raw[: len(part.rows)], m.embedding_dtype)
            ends = self._ends[part.first : part.first + len(part.rows)]
            tokens = self._by_id[ends[0] - self._counts[part.first] : ends[-1]]
            for some in np.split(tokens, range(_ROWS_AT_ONCE, len(tokens), _ROWS_AT_ONCE)):
                np.take(wide, self._inverse[some] - part.first, axis=0, out=gathered[: len(some)], mode="clip")
                out[some] = gathered[: len(some)]

    def _open(self, part: _Part, raw: np.ndarray) -> None:
        """Copy a part's rows out of its memory."""
        bad = _native.open_records(self._memory, part.offsets, raw)
        if bad >= 0:
            offset = int(part.rows[bad]) * self._manifest.embedding_record_bytes
            raise ReadError(
                f"{self._path}: embedding row {part.rows[bad]} at offset {offset}: wrong checksum, the bytes on disk are "
                "damaged; convert the model again"
            )

    def _ask(self, place: int) -> None:
        """Read the blocks that hold the next part's records; neighbours share a request."""
        rows = self._unique[self._asked : self._asked + self._part_rows]
        if not len(rows):
            return
        record, end_of_file = self._manifest.embedding_record_bytes, self._manifest.embedding_bytes
        starts = rows.astype(np.int64) * record
        first_block = starts // _BLOCK * _BLOCK
        end_block = np.minimum(-(-(starts + record) // _BLOCK) * _BLOCK, end_of_file)
        new_run = np.concatenate(([True], first_block[1:] > end_block[:-1]))
        run_starts, run_of = np.flatnonzero(new_run), np.cumsum(new_run) - 1
        begins = first_block[run_starts]
        lengths = end_block[np.append(run_starts[1:], len(starts)) - 1] - begins
        targets = place * self._part_bytes + np.concatenate(([0], np.cumsum(lengths)[:-1]))
        parts = zip(begins.tolist(), (self._address + targets).tolist(), lengths.tolist(), strict=True)
        ticket = self._reads.native.gather(EMBEDDING_FILE, list(parts))
        self.bytes += int(lengths.sum())
        offsets = np.ascontiguousarray(targets[run_of] + starts - begins[run_of])
        self._parts.append(_Part(self._asked, rows, place, ticket, offsets))
        self._asked += len(rows)


def _widen_into(values: np.ndarray, raw: np.ndarray, dtype: str) -> None:
    """float32 values from stored rows of bytes."""
    if dtype == "bfloat16":
        np.left_shift(raw.view(np.uint16), 16, out=values.view(np.uint32), dtype=np.uint32)
    else:
        values[:] = raw.view(np.float16 if dtype == "float16" else np.float32)


def scratch_bytes_per_row(record_bytes: int) -> int:
    """Scratch that one row needs at most: its record and the rest of the blocks at both ends."""
    return round_up(record_bytes, _BLOCK) + _BLOCK
