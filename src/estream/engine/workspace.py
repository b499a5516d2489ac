"""The arena of one model: how it is planned, divided for a sweep, and backed with memory before it is used."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from estream import _native
from estream.engine.memory import ArenaPlan, SweepLayout, divide_arena, plan_arena, smallest_ring
from estream.engine.options import Configuration
from estream.package.manifest import Manifest


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
    """One allocation of fixed address: pinned pages, ring, activations. It grows in parts, and never moves."""

    def __init__(
        self,
        manifest: Manifest,
        capacity: int,
        activations: int,
        configuration: Configuration,
        *,
        lock: bool,
        allocate: Callable[[int], ArenaMemory] = _native.Arena,
    ) -> None:
        """Take ``capacity`` bytes for a model whose usual batch needs ``activations``, as ``allocate`` gives them.

        ``lock`` keeps it from being swapped out, as far as the limit on locked memory allows; ``locked`` tells.
        """
        self._tape = manifest.tape
        usual = min(activations, capacity - smallest_ring(self._tape))
        self._plan: ArenaPlan = plan_arena(self._tape, capacity, usual, configuration)
        self._arena = allocate(self._plan.bytes)
        self.locked = lock and self._arena.lock()
        self.memory: np.ndarray = self._arena.bytes()
        self._used_from_start, self._used_from = 0, self._plan.bytes
        self.layout = self.divide(usual)

    @property
    def native(self) -> ArenaMemory:
        return self._arena

    @property
    def address(self) -> int:
        return self._arena.address

    @property
    def ring_address(self) -> int:
        return self.address + self.layout.ring_offset

    @property
    def bytes(self) -> int:
        """Memory that is used now."""
        return min(self._plan.bytes, self._used_from_start + self._plan.bytes - self._used_from)

    def pinned(self) -> dict[int, int]:
        """Addresses of pinned pages by index."""
        return {index: self.address + offset for index, offset in self._plan.pinned.items()}

    def divide(self, activations: int) -> SweepLayout:
        """Lay out one sweep that needs so many bytes of activations, and back it with memory."""
        self.layout = divide_arena(self._plan, self._tape, activations)
        self._populate(self.layout)
        return self.layout

    def _populate(self, layout: SweepLayout) -> None:
        """After the first sweep of a length there is nothing to do."""
        end = layout.ring_offset + layout.ring_bytes
        if end > self._used_from_start:
            self._arena.populate(self._used_from_start, end - self._used_from_start)
            self._used_from_start = end
        if layout.activations_offset < self._used_from:
            self._arena.populate(layout.activations_offset, self._used_from - layout.activations_offset)
            self._used_from = layout.activations_offset
