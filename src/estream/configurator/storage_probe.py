"""Probes of the storage: bandwidth as a function of request size and lanes, and the embedding's small reads."""

import math
import time
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from estream import _native
from estream.configurator.curve import Curve, Point, quietest
from estream.engine.embedding import EmbeddingReader, scratch_bytes_per_row
from estream.engine.reads import PAGES_FILE, Reads
from estream.errors import ReadError
from estream.host.disk import disk_limits
from estream.host.sizes import KiB, MiB
from estream.package.package import Package

LANE_COUNTS = (1, 2, 4, 8)
REQUESTS = (512 * KiB, MiB, 2 * MiB, 4 * MiB, 8 * MiB)
#: No more is kept in flight: larger combinations bring nothing and take long on slow disks.
_MOST_IN_FLIGHT = 32 * MiB
#: What all rounds over the combinations may take together.
_SECONDS = 3.0
#: How long one sample should take, and its least size: throttles let small bursts pass at full speed.
_SAMPLE_SECONDS, _SAMPLE_BYTES = 0.04, 4 * MiB
_EMBEDDING_ROWS = (1, 128, 1024)


@dataclass(frozen=True)
class Scratch:
    """Memory that a probe may overwrite: uint8 [bytes] at ``address``."""

    memory: np.ndarray
    address: int

    def __len__(self) -> int:
        return len(self.memory)

    def part(self, begin: int, end: int) -> "Scratch":
        return Scratch(self.memory[begin:end], self.address + begin)


class StorageProbe:
    """Reads stretches of ``pages.bin`` ever further on in the file, past the page cache where the file system can."""

    def __init__(self, package: Package, direct_io: bool, scratch: Scratch) -> None:
        self._package = package
        self._direct = direct_io
        self._scratch = scratch
        self._size = package.manifest.pages_bytes
        self._next = 0
        self._samples: dict[tuple[int, int], list[float]] = defaultdict(list)
        self._rows: dict[int, list[float]] = defaultdict(list)
        self._rng = np.random.default_rng(0)
        self._expected, self._left_s = 0.0, _SECONDS

    def into(self, scratch: Scratch) -> "StorageProbe":
        """The same, reading into other memory."""
        return StorageProbe(self._package, self._direct, scratch)

    def measure(self) -> None:
        """One round over all combinations, cut short (but not the first) once reading has taken long, and over the rows."""
        pairs, first = self._pairs(), not self._samples
        if first:
            self._expected = self.sample(*pairs[len(pairs) // 2], 8 * MiB)
        for lanes, request in pairs:
            if first or self._left_s > 0:
                wanted = max(int(self._expected * _SAMPLE_SECONDS), 2 * lanes * request, _SAMPLE_BYTES)
                begin = time.perf_counter()
                self._samples[lanes, request].append(self.sample(lanes, request, wanted))
                self._left_s -= time.perf_counter() - begin
        self._gather_rows()

    def _pairs(self) -> list[tuple[int, int]]:
        """Lanes and request sizes that are measured."""
        most = min(_MOST_IN_FLIGHT, len(self._scratch), self._size)
        return [(n, r) for n in LANE_COUNTS for r in REQUESTS if n * r <= most] or [(1, REQUESTS[0])]

    def rates(self) -> dict[int, Curve]:
        """Bytes per second for each number of lanes, as a function of the bytes of a request."""
        # A burst may exceed what the control group grants in the long run.
        granted = disk_limits(self._package.path).get("rbps", math.inf)
        points: dict[int, list[Point]] = defaultdict(list)
        for (lanes, request), rates in self._samples.items():
            points[lanes].append(Point.of(request, [min(rate, granted) for rate in rates], highest=True))
        return {lanes: Curve.of(points[lanes]) for lanes in sorted(points)}

    def embedding(self) -> Curve:
        """Seconds to gather a number of random embedding rows with four lanes."""
        return Curve.of(Point.of(rows, samples) for rows, samples in self._rows.items())

    def sample(self, lanes: int, request: int, size: int) -> float:
        """Bytes per second of reading one stretch of about ``size`` bytes."""
        reader = self.reader(lanes, request)
        begin = time.perf_counter()
        size = self.read(reader, request, size)
        return size / (time.perf_counter() - begin)

    def reader(self, lanes: int, request: int) -> "_native.Reader":
        return self._package.open_reader(lanes, request, self._direct)

    def read(self, reader: "_native.Reader", request: int, size: int) -> int:
        """Read the next stretch of about ``size`` bytes; returns how many.

        Raises:
            ReadError: the file could not be read.

        """
        ticket, length = self.start(reader, request, size)
        while (outcome := reader.wait(ticket, 0.1))[0] == "pending":
            pass
        if outcome[0] != "ready":
            raise ReadError(f"{self._package.pages_path}: probing failed at offset {outcome[2]} ({outcome[0]}); check the disk")
        return length

    def start(self, reader: "_native.Reader", request: int, size: int) -> tuple[int, int]:
        """Ask for the next stretch; returns its ticket and length."""
        length = min(
            max(size // request, 1) * request, len(self._scratch) // request * request, self._size // request * request
        )
        length = length or min(len(self._scratch), self._size)
        if self._next + length > self._size:
            self._next = 0
        ticket = reader.submit(PAGES_FILE, self._next, self._scratch.address, length, [(0, length, 0, False)])
        self._next += length
        return ticket, length

    def pages_seconds(self, reader: "_native.Reader", size: int) -> float:
        """Seconds that each byte takes where about ``size`` bytes of whole pages are read."""
        begin = time.perf_counter()
        ticket, length = self.start_pages(reader, size)
        while reader.wait(ticket, 0.1)[0] == "pending":
            pass
        return (time.perf_counter() - begin) / length

    def start_pages(self, reader: "_native.Reader", size: int) -> tuple[int, int]:
        """Ask for whole pages, at least one and about ``size`` bytes, whose checksums the lanes compute as in a sweep;
        returns the last one's ticket and the bytes.
        """
        tape = self._package.manifest.tape
        fitting = next((i for i, p in enumerate(tape) if p.offset >= self._next and p.padded_bytes <= len(self._scratch)), 0)
        end, begin = fitting + 1, tape[fitting].offset
        while end < len(tape) and tape[end].offset + tape[end].padded_bytes - begin <= min(size, len(self._scratch)):
            end += 1
        pages = tape[fitting:end]
        length = pages[-1].offset + pages[-1].padded_bytes - begin
        parts = [(p.offset - begin, p.bytes, p.checksum, True) for p in pages]
        self._next = 0 if end == len(tape) else begin + length
        return reader.submit(PAGES_FILE, begin, self._scratch.address, length, parts) + len(pages) - 1, length

    def submit_seconds(self) -> float:
        """What it takes to ask a sleeping lane for a read, in seconds."""
        reader, samples = self.reader(4, 4096), []
        for _ in range(64):
            begin = time.perf_counter()
            ticket = reader.submit(PAGES_FILE, 0, self._scratch.address, 4096, [(0, 4096, 0, False)])
            samples.append(time.perf_counter() - begin)
            while not reader.is_published(ticket):
                time.sleep(100e-6)
        return quietest(samples)

    def _gather_rows(self) -> None:
        manifest = self._package.manifest
        reader = self.reader(4, 2 * MiB)
        reads = Reads(reader, [self._package.pages_path, self._package.embedding_path])
        room = len(self._scratch) // scratch_bytes_per_row(manifest.embedding_record_bytes) // 2
        for rows in sorted({min(r, room, manifest.config.vocabulary) for r in _EMBEDDING_ROWS}):
            ids = self._rng.integers(0, manifest.config.vocabulary, rows).astype(np.int32)
            out = np.empty((rows, manifest.config.hidden), np.float32)
            begin = time.perf_counter()
            EmbeddingReader(self._package, reads, ids, self._scratch.memory).finish(out)
            self._rows[rows].append(time.perf_counter() - begin)
