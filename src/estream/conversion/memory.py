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


@dataclass(frozen=True)
class Pace:
    """``reading`` bounds what is read ahead; ``waiting`` blocks of ``embedding_rows`` rows, or pages, wait to be written."""

    reading: Limits
    waiting: int
    embedding_rows: int


def choose_pace(
    spec: PackageSpec,
    checkpoint: CheckpointSource,
    tensors: ModelTensors,
    tape: Iterable[PageSpec],
    reading: Limits,
    text_pages: int,
) -> Pace:
    """Read ahead as far as ``reading`` says where memory allows it, else page by page.

    A calibration text takes ``text_pages`` of the largest size beside its activations, which are in memory already.

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
        pages = ahead + _COPIES * largest_rows + (pace.waiting + 2 + text_pages) * largest_page
        block = pace.embedding_rows * row_bytes
        embedding = min(pace.reading.bytes, spec.config.vocabulary * row_bytes) + (pace.waiting + 4) * block
        needed = max(pages, embedding) + _FIXED
        if needed <= free:
            BUFFERS.keep(64 * MiB if pace is full else 0)
            return pace
    raise BudgetError(
        f"converting needs {format_bytes(needed)} of memory beside the program itself, {format_bytes(free)} are free: the "
        f"largest page has {format_bytes(largest_rows)} of weights; give the process, or its control group, more",
        needed + limits.resident_bytes(),
    )
