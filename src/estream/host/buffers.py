"""A pool of large buffers. In a virtual machine, the first use of fresh memory takes longer than reading a file into it."""

from collections import deque

import numpy as np

from estream.host.sizes import MiB, round_up

ALIGNMENT = 4096
#: Sizes are rounded up to a multiple of this, so that a buffer serves requests of similar sizes.
_STEP = MiB // 4
_HUGE_PAGE = 2 * MiB


class BufferPool:
    """Lends buffers. A buffer returns to the pool when no array refers to it any more.

    The pool keeps about ``kept`` bytes of unused buffers at most. Several threads may take buffers at once.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        # No lock: deque's operations are atomic, and a finalizer that runs inside take() would wait for the lock forever.
        self._free: deque[np.ndarray] = deque()

    def take(self, size: int) -> np.ndarray:
        """Return uint8 [size] at an address aligned for direct I/O. The content is undefined."""
        room = round_up(size, _STEP)
        return np.asarray(_Lease(self._free, self._unused(room)))[:size]

    def keep(self, kept: int) -> None:
        """Keep about this many bytes of unused buffers at most from now on."""
        self._kept = kept

    def clear(self) -> None:
        """Free the buffers that are not in use."""
        self._free.clear()

    def _unused(self, room: int) -> np.ndarray:
        """Take an unused buffer of this size, or allocate one. Drops the oldest unused buffers beyond ``kept`` bytes."""
        found, waiting = None, 0
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if found is None and memory.size == room:
                found = memory
            elif (waiting := waiting + memory.size) <= self._kept:
                self._free.appendleft(memory)
        if found is not None:
            return found
        # NumPy asks for huge pages; direct I/O then pins fewer pages.
        raw = np.empty(room + _HUGE_PAGE, np.uint8)
        start = -raw.ctypes.data % _HUGE_PAGE
        return raw[start : start + room]


class _Lease:
    """Owner of a lent buffer: arrays over the buffer refer to it, and its finalizer returns the buffer."""

    def __init__(self, free: deque[np.ndarray], memory: np.ndarray) -> None:
        self._free = free
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)


#: The buffers of a conversion, for reading and for pages.
BUFFERS = BufferPool(64 * MiB)
