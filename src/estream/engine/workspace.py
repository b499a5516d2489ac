"""The arena of one model in memory: allocated once, backed with memory part by part before it is used, never moved."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from estream import _native
from estream.engine.memory import ArenaPlan, SweepLayout
from estream.host.sizes import format_bytes


class ArenaMemory(Protocol):
    """One allocation of fixed address, writable by reads past the page cache: the host's own, or what a device lends, such as
    memory that an NPU sees without a copy (docs/npu.md).
    """

    @property
    def address(self) -> int:
        """A multiple of 64 KiB."""

    def bytes(self) -> np.ndarray:
        """All of it, uint8; keeps the allocation alive."""

    def populate(self, offset: int, size: int) -> None:
        """Back a part with memory now."""

    def lock(self) -> bool:
        """Keep it from being swapped out; whether that was granted."""


class Workspace:
    """Pinned pages, ring and activations, in one allocation. ``locked`` tells whether it is kept from being swapped out."""

    def __init__(self, plan: ArenaPlan, *, lock: bool, allocate: Callable[[int], ArenaMemory] = _native.Arena) -> None:
        """Take the plan's bytes, as ``allocate`` gives them. ``lock`` asks for locked memory, as far as the limit allows."""
        self._size = plan.bytes
        try:
            self._arena = allocate(plan.bytes)
        except MemoryError as error:
            raise _too_large(plan.bytes) from error
        self.locked = lock and self._arena.lock()
        self.memory: np.ndarray = self._arena.bytes()
        self._backed_from_start, self._backed_from = 0, plan.bytes

    @property
    def native(self) -> ArenaMemory:
        return self._arena

    @property
    def address(self) -> int:
        return self._arena.address

    @property
    def bytes(self) -> int:
        """Memory that is backed now."""
        return min(self._size, self._backed_from_start + self._size - self._backed_from)

    def prepare(self, layout: SweepLayout) -> None:
        """Back what a sweep uses with memory. After the first sweep of a length there is nothing to do."""
        end = layout.ring_offset + layout.ring_bytes
        if end > self._backed_from_start:
            self._populate(self._backed_from_start, end)
            self._backed_from_start = end
        if layout.activations_offset < self._backed_from:
            self._populate(layout.activations_offset, self._backed_from)
            self._backed_from = layout.activations_offset

    def _populate(self, begin: int, end: int) -> None:
        try:
            self._arena.populate(begin, end - begin)
        except MemoryError as error:
            raise _too_large(end - begin) from error


def _too_large(size: int) -> MemoryError:
    return MemoryError(
        f"the system has no {format_bytes(size)} of memory for pages and activations; give a smaller budget with --memory, or "
        "free memory (ulimit -v bounds it too)"
    )
