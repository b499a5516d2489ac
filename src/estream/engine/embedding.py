"""Embedding rows: only those that a batch names, each once, read by the lanes."""

from dataclasses import dataclass

import numpy as np

from estream import _native
from estream.checkpoint.huggingface import widen
from estream.engine.pager import EMBEDDING_FILE, Pager
from estream.errors import ReadError
from estream.package.package import Package
from estream.units import round_up

#: Offsets and lengths of direct reads that are smaller than a page.
_BLOCK = 4096
#: Rows that are checked and widened at once.
_ROWS_AT_ONCE = 512


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
        self._unique, self._inverse = np.unique(ids, return_inverse=True)
        self._per_turn = max(1, len(memory) // scratch_bytes_per_row(self._manifest.embedding_record_bytes))
        self._turn = self._ask(self._unique[: self._per_turn])

    def finish(self, out: np.ndarray) -> None:
        """Fill ``out`` [tokens, hidden] of any floating type.

        Raises:
            ReadError: the file could not be read, or a row's checksum is wrong.

        """
        first = 0
        while True:
            for ticket in self._turn.tickets:
                self._pager.wait(ticket, EMBEDDING_FILE, "embedding rows")
            self._widen(first, out)
            first += self._per_turn
            if first >= len(self._unique):
                return
            self._turn = self._ask(self._unique[first : first + self._per_turn])

    def _widen(self, first: int, out: np.ndarray) -> None:
        dtype = self._manifest.embedding_dtype
        for begin in range(0, len(self._turn.rows), _ROWS_AT_ONCE):
            rows = self._turn.rows[begin : begin + _ROWS_AT_ONCE]
            raw = np.empty((len(rows), self._manifest.embedding_row_bytes), np.uint8)
            bad = _native.open_records(self._memory, self._turn.offsets[begin : begin + len(rows)], raw)
            if bad >= 0:
                offset = int(rows[bad]) * self._manifest.embedding_record_bytes
                raise ReadError(
                    f"{self._path}: embedding row {rows[bad]} at offset {offset}: wrong checksum, the bytes on disk are "
                    "damaged; convert the model again"
                )
            values = widen(raw.view(np.float32 if dtype == "float32" else np.uint16), dtype)
            tokens = np.flatnonzero((self._inverse >= first + begin) & (self._inverse < first + begin + len(rows)))
            out[tokens] = values[self._inverse[tokens] - first - begin]

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


def scratch_bytes_per_row(record_bytes: int) -> int:
    """Scratch that one row needs at most: its record and the rest of the blocks at both ends."""
    return round_up(record_bytes, _BLOCK) + _BLOCK
