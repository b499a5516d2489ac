"""Reading a whole package and checking every checksum."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from estream import _native
from estream.host import limits
from estream.host.sizes import MiB
from estream.package.manifest import Page
from estream.package.package import Package

_LANES = 4
_REQUEST = 2 * MiB
_WINDOW = 64 * MiB
_BLOCK = 4096


@dataclass(frozen=True)
class VerifyReport:
    """``damaged`` names each bad page and embedding row, with file and offset."""

    bytes: int
    damaged: list[str]
    direct_io: bool


def verify(package: Package, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Read every page and every embedding row once; memory stays at about 96 MiB or one and a half of the largest page.

    Raises:
        BudgetError: less is free than the largest page takes.

    """
    manifest = package.manifest
    least = max(manifest.embedding_record_bytes + 2 * _BLOCK, *(page.padded_bytes for page in manifest.tape))
    # Rows of the embedding are copied out of half of the window.
    window = 2 * limits.fitting(max(_WINDOW, least) * 3 // 2, least * 3 // 2, f"verifying {package.path}") // 3
    arena = _native.Arena(window)
    arena.populate(0, window)
    reader = package.open_reader(_LANES, _REQUEST, True)
    damaged: list[str] = []
    done = 0
    for pages in _windows(manifest.tape, window):
        damaged += _verify_pages(package, reader, arena, pages)
        done += sum(page.padded_bytes for page in pages)
        if progress:
            progress(done, package.bytes)
    damaged += _verify_embedding(package, reader, arena, window)
    return VerifyReport(package.bytes, damaged, bool(reader.direct(0) and reader.direct(1)))


def _windows(tape: Sequence[Page], window: int) -> Iterator[list[Page]]:
    """Neighbouring pages that fit into the window together."""
    pages: list[Page] = []
    for page in tape:
        if pages and page.offset + page.padded_bytes - pages[0].offset > window:
            yield pages
            pages = []
        pages.append(page)
    yield pages


def _outcome(reader: "_native.Reader", ticket: int) -> str:
    while (state := reader.wait(ticket, 0.1)[0]) == "pending":
        pass
    return str(state)


def _verify_pages(package: Package, reader: "_native.Reader", arena: "_native.Arena", pages: list[Page]) -> list[str]:
    first, last = pages[0], pages[-1]
    length = last.offset + last.padded_bytes - first.offset
    parts = [(page.offset - first.offset, page.bytes, page.checksum, True) for page in pages]
    ticket = reader.submit(0, first.offset, arena.address, length, parts)
    names = {"checksum": "wrong checksum", "short": "the file ends before the page does", "io": "it cannot be read"}
    outcomes = [(page, _outcome(reader, ticket + i)) for i, page in enumerate(pages)]
    return [
        f"{package.pages_path}: {page.spec} at offset {page.offset}: {names[state]}"
        for page, state in outcomes
        if state != "ready"
    ]


def _verify_embedding(package: Package, reader: "_native.Reader", arena: "_native.Arena", window: int) -> list[str]:
    manifest = package.manifest
    record, row_bytes, rows = manifest.embedding_record_bytes, manifest.embedding_row_bytes, manifest.config.vocabulary
    # Reads begin on aligned offsets, so a window may begin and end inside records; it is advanced by whole ones.
    rows_at_once = max(1, (window // 2 - 2 * _BLOCK) // record)
    damaged: list[str] = []
    for first in range(0, rows, rows_at_once):
        numbers = np.arange(first, min(first + rows_at_once, rows), dtype=np.int64)
        begin = first * record // _BLOCK * _BLOCK
        length = min(-(-(int(numbers[-1]) + 1) * record // _BLOCK) * _BLOCK, manifest.embedding_bytes) - begin
        if _outcome(reader, reader.submit(1, begin, arena.address, length, [(0, length, 0, False)])) != "ready":
            damaged.append(f"{package.embedding_path}: rows {first}..{numbers[-1]} at offset {begin}: they cannot be read")
            continue
        offsets = numbers * record - begin
        data, raw = arena.bytes()[:length], np.empty((len(numbers), row_bytes), np.uint8)
        done = 0
        while (bad := _native.open_records(data, offsets[done:], raw[done:])) >= 0:
            row = first + done + bad
            damaged.append(f"{package.embedding_path}: row {row} at offset {row * record}: wrong checksum")
            done += bad + 1
            if done == len(numbers):
                break
    return damaged
