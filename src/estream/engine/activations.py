"""The arrays of a sweep: their sizes are known before any of them exists, and all of them lie in the arena.

A device lists its own arrays. The engine knows of them the bytes, the residual and the answers.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from estream.engine.batch import BatchShape
from estream.engine.head import HeadArrays
from estream.host.sizes import round_up

#: Where each array begins: direct reads fill the memory of some.
ALIGNMENT = 4096


class Carver:
    """Lays arrays one after another into memory; without memory it only counts their bytes in ``offset``."""

    def __init__(self, memory: np.ndarray | None = None) -> None:
        self.offset = 0
        self._memory = memory

    def __call__(self, dtype: type[np.generic], *shape: int) -> np.ndarray:
        """A view of the next free bytes; an empty array where there is no memory."""
        begin = self.offset
        end = begin + math.prod(shape) * np.dtype(dtype).itemsize
        self.offset = begin + round_up(end - begin, ALIGNMENT)
        if self._memory is None:
            return np.empty(0, dtype)
        return self._memory[begin:end].view(dtype).reshape(shape)


class SweepArrays(Protocol):
    """What the engine sees of a sweep's arrays; the rest is between a device and its plan. T tokens, W wanted positions."""

    @property
    def residual(self) -> np.ndarray:
        """[T or more, hidden] in a floating dtype that the device chooses; the engine fills in the embedding rows."""

    @property
    def head(self) -> HeadArrays:
        """What is wanted of the W positions."""


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
