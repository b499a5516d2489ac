"""Embedding rows: only those that a batch names, each once, read by the lanes."""

from dataclasses import dataclass

import numpy as np

from estream import _native
from estream.engine.pager import EMBEDDING_FILE, Pager
from estream.errors import ReadError
from estream.package.package import Package
from estream.units import round_up

#: Offsets and lengths of direct reads that are smaller than a page.
_BLOCK = 4096
#: Rows that are checked and widened at once.
_ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class _Turn:
    """Rows that fit into the scratch memory together: their reads, and where each record will lie."""

    rows: np.ndarray
    tickets: list[int]
    offsets: np.ndarray


class EmbeddingReader:
    """Reads the rows of one batch into scratch memory, then converts them to the type of the residual.

    ``start`` asks for the rows, so that they come before any page; ``finish`` waits for them.
    """

    def __init__(self, package: Package, reader: "_native.Reader", pager: Pager) -> None:
        self._path = package.embedding_path
        self._manifest = package.manifest
        self._reader = reader
        self._pager = pager

    def start(self, ids: np.ndarray, memory: np.ndarray, address: int) -> None:
        """Ask for the rows of int32 ``ids``; ``memory`` is uint8 scratch at ``address``, untouched until ``finish``."""
        self._memory, self._address = memory, address
        self._unique, self._inverse, self._counts = np.unique(ids, return_inverse=True, return_counts=True)
        # Tokens in the order of their ids; those of the unique id i end at _ends[i].
        self._by_id, self._ends = np.argsort(self._inverse, kind="stable"), np.cumsum(self._counts)
        self._per_turn = max(1, len(memory) // scratch_bytes_per_row(self._manifest.embedding_record_bytes))
        self._turn = self._ask(self._unique[: self._per_turn])

    def finish(self, out: np.ndarray) -> None:
        """Fill ``out`` [tokens, hidden] of any floating type.

        Raises:
            ReadError: the file could not be read, or a row's checksum is wrong.

        """
        first = 0
        while True:
            begin = self._pager.clock()
            for ticket in self._turn.tickets:
                self._pager.wait(ticket, EMBEDDING_FILE, "embedding rows")
            self._pager.stalled(begin, "embedding", "embedding rows")
            self._widen(first, out)
            first += self._per_turn
            if first >= len(self._unique):
                return
            self._turn = self._ask(self._unique[first : first + self._per_turn])

    def _widen(self, first: int, out: np.ndarray) -> None:
        """Write the rows of this turn, whose first is the ``first`` of the unique ids, to the tokens that have them."""
        m = self._manifest
        # Made once: fresh memory for each part would cost more than the work on it.
        raw = np.empty((_ROWS_AT_ONCE, m.embedding_row_bytes), np.uint8)
        wide, gathered = np.empty((2, _ROWS_AT_ONCE, out.shape[1]), np.float32)
        for begin in range(0, len(self._turn.rows), _ROWS_AT_ONCE):
            rows = self._turn.rows[begin : begin + _ROWS_AT_ONCE]
            bad = _native.open_records(self._memory, self._turn.offsets[begin : begin + len(rows)], raw[: len(rows)])
            if bad >= 0:
                offset = int(rows[bad]) * m.embedding_record_bytes
                raise ReadError(
                    f"{self._path}: embedding row {rows[bad]} at offset {offset}: wrong checksum, the bytes on disk are "
                    "damaged; convert the model again"
                )
            _widen_into(wide[: len(rows)], raw[: len(rows)], m.embedding_dtype)
            ends = self._ends[first + begin : first + begin + len(rows)]
            tokens = self._by_id[ends[0] - self._counts[first + begin] : ends[-1]]
            for part in np.split(tokens, range(_ROWS_AT_ONCE, len(tokens), _ROWS_AT_ONCE)):
                np.take(wide, self._inverse[part] - first - begin, axis=0, out=gathered[: len(part)], mode="clip")
                out[part] = gathered[: len(part)]

    def _ask(self, rows: np.ndarray) -> _Turn:
        """Read the blocks that hold these records; neighbours share a request."""
        record, end_of_file = self._manifest.embedding_record_bytes, self._manifest.embedding_bytes
        starts = rows.astype(np.int64) * record
        first_block = starts // _BLOCK * _BLOCK
        end_block = np.minimum(-(-(starts + record) // _BLOCK) * _BLOCK, end_of_file)
        new_run = np.concatenate(([True], first_block[1:] > end_block[:-1]))
        run_starts, run_of = np.flatnonzero(new_run), np.cumsum(new_run) - 1
        begins = first_block[run_starts]
        lengths = end_block[np.append(run_starts[1:], len(starts)) - 1] - begins
        targets = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        tickets = [
            self._reader.submit(EMBEDDING_FILE, int(begin), self._address + int(to), int(length), [(0, int(length), 0, False)])
            for begin, to, length in zip(begins, targets, lengths, strict=True)
        ]
        return _Turn(rows, tickets, np.ascontiguousarray(targets[run_of] + starts - begins[run_of]))


def _widen_into(values: np.ndarray, raw: np.ndarray, dtype: str) -> None:
    """float32 values from stored rows of bytes."""
    if dtype == "bfloat16":
        np.left_shift(raw.view(np.uint16), 16, out=values.view(np.uint32), dtype=np.uint32)
    else:
        values[:] = raw.view(np.float16 if dtype == "float16" else np.float32)


def scratch_bytes_per_row(record_bytes: int) -> int:
    """Scratch that one row needs at most: its record and the rest of the blocks at both ends."""
    return round_up(record_bytes, _BLOCK) + _BLOCK
