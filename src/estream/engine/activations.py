"""The arrays of a sweep: their sizes are known before any of them exists, and all of them lie in the arena.

A device lists its own arrays. The engine knows of them the bytes, the residual and the logits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from estream.engine.batch import BatchShape
from estream.host.sizes import round_up

#: Where each array begins: direct reads fill the memory of some.
ALIGNMENT = 4096


@dataclass(frozen=True)
class Array:
    """Shape and dtype of one array to come."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


class Carver:
    """Lays arrays one after another into memory; without memory it only counts their bytes in ``offset``."""

    def __init__(self, memory: np.ndarray | None = None) -> None:
        self.offset = 0
        self._memory = memory

    def take(self, array: Array) -> np.ndarray:
        """A view of the next free bytes; an empty array where there is no memory."""
        offset = self.offset
        self.offset += round_up(array.bytes, ALIGNMENT)
        if self._memory is None:
            return np.empty(0, array.dtype)
        return self._memory[offset : offset + array.bytes].view(array.dtype).reshape(array.shape)


class SweepArrays(Protocol):
    """What the engine sees of a sweep's arrays; the rest is between a device and its plan. T tokens, W wanted positions."""

    @property
    def residual(self) -> np.ndarray:
        """[T or more, hidden] in a floating dtype that the device chooses; the engine fills in the embedding rows."""

    @property
    def logits(self) -> np.ndarray:
        """float32 [W, vocabulary]."""


class ArraysPlan(Protocol):
    """The arrays of a sweep to come."""

    @property
    def bytes(self) -> int:
        """Bytes of all arrays."""

    @property
    def residual_bytes(self) -> int:
        """Bytes of the residual, which lies first. What lies behind it is unused until the first layer."""

    def carve(self, memory: np.ndarray) -> SweepArrays:
        """Lay the arrays into ``memory``, uint8 of at least ``bytes``, at a multiple of ``ALIGNMENT``."""


#: Plans the arrays of a batch from its shape alone, without a device.
ArraysPlanner = Callable[[BatchShape], ArraysPlan]
