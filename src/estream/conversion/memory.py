"""How far a conversion may read ahead in the memory that is free, and what it needs at least: known before it allocates."""

from collections.abc import Iterable
from dataclasses import dataclass

from estream.checkpoint.source import CheckpointSource
from estream.errors import BudgetError
from estream.host import limits
from estream.host.buffers import BUFFERS
from estream.host.read_ahead import Limits
from estream.host.sizes import MiB, format_bytes
from estream.models.config import ModelTensors
from estream.package.layout import PageSpec
from estream.package.manifest import EMBEDDING_ITEM_BYTES
from estream.package.writer import PackageSpec, embedding_rows_per_write
from estream.quantization.weights import PageWeights

#: Two buffers for writing, threads, and what the interpreter takes for the list of pages.
_FIXED = 28 * MiB
#: Rows that are read, their copies in float32 and in another order, and those that are read next.
_COPIES = 4
#: A page, its codes in bytes and what they are made of, for another order of them.
_REORDERED = 12


@dataclass(frozen=True)
class Pace:
    """``reading`` bounds what is read ahead; ``waiting`` blocks of ``embedding_rows`` rows, or pages, wait to be written."""

    reading: Limits
    waiting: int
    embedding_rows: int


@dataclass(frozen=True)
class Beside:
    """What a conversion takes beside reading and packing, in bytes.

    ``held`` stays in memory until the end: compiled graphs. A calibration text takes ``text`` and ``text_pages`` of the largest
    size. For the NPU a page is ``reordered``, of which codes of one byte each are made.
    """

    held: int = 0
    text: int = 0
    text_pages: int = 0
    reordered: bool = False

    def with_page(self, largest: int) -> int:
        """While pages are packed, of which the largest has so many bytes."""
        return self.text + (self.text_pages + (_REORDERED if self.reordered else 0)) * largest

    def words(self, largest: int) -> str:
        """For a message."""
        npu = self.held + (_REORDERED * largest if self.reordered else 0)
        parts = [("--calibrate", self.text + self.text_pages * largest), ("--device qnn", npu)]
        return "".join(f", and {name} takes {format_bytes(size)}" for name, size in parts if size)


def choose_pace(
    spec: PackageSpec,
    checkpoint: CheckpointSource,
    tensors: ModelTensors,
    tape: Iterable[PageSpec],
    reading: Limits,
    beside: Beside = Beside(),
) -> Pace:
    """Read ahead as far as ``reading`` says where memory allows it, else page by page.

    ``tape`` has the pages that are packed; ``beside`` is what is in memory with them.

    Raises:
        BudgetError: not even that fits.

    """
    weights = PageWeights(checkpoint, spec.config, tensors)
    largest_rows = largest_page = rows_in_all = 0
    seen: dict[tuple[str, int], int] = {}
    for page in tape:
        key = page.kind, page.bytes
        if key not in seen:
            seen[key] = weights.read_bytes(page)
        rows_in_all += seen[key]
        largest_rows, largest_page = max(largest_rows, seen[key]), max(largest_page, page.bytes)
    row_bytes = spec.config.hidden * EMBEDDING_ITEM_BYTES[spec.embedding_dtype]
    rows = min(embedding_rows_per_write(spec), spec.config.vocabulary)
    full, careful = Pace(reading, 4, rows), Pace(Limits(1, 0), 1, max(1, rows // 16))
    free = limits.free_bytes()
    for pace in (full, careful):
        ahead = min(pace.reading.bytes, rows_in_all)
        pages = ahead + _COPIES * largest_rows + (pace.waiting + 2) * largest_page
        block = pace.embedding_rows * row_bytes
        embedding = min(pace.reading.bytes, spec.config.vocabulary * row_bytes) + (pace.waiting + 4) * block
        needed = max(pages + beside.with_page(largest_page), embedding) + beside.held + _FIXED
        if needed <= free:
            BUFFERS.keep(64 * MiB if pace is full else 0)
            return pace
    raise BudgetError(
        f"converting needs {format_bytes(needed)} of memory beside the program itself, {format_bytes(free)} are free: the "
        f"largest page has {format_bytes(largest_rows)} of weights{beside.words(largest_page)}; give the process, or its "
        "control group, more",
        needed + limits.resident_bytes(),
    )
