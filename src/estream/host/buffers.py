"""Large buffers that are used again: under a hypervisor fresh memory costs more than what is read into it."""

from collections import deque

import numpy as np

from estream.host.sizes import MiB, round_up

ALIGNMENT = 4096
#: Sizes are rounded up to this, so that a buffer fits the next of about its size.
_STEP = MiB // 4
_HUGE_PAGE = 2 * MiB


class BufferPool:
    """Gives out memory that comes back by itself as soon as no array refers to it any more.

    At most about ``kept`` bytes wait to be used again. Several threads may take buffers at once.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        # Its own operations are atomic; a lock could be taken by a finalizer inside of take().
        self._free: deque[np.ndarray] = deque()

    def take(self, size: int) -> np.ndarray:
        """uint8 [size] at an address that direct I/O accepts, with whatever was in it."""
        room = round_up(size, _STEP)
        return np.asarray(_Lease(self._free, self._unused(room)))[:size]

    def clear(self) -> None:
        """Give back what is not in use."""
        self._free.clear()

    def _unused(self, room: int) -> np.ndarray:
        """A buffer of this size, the oldest of others given up where too many wait."""
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
        # NumPy asks for huge pages, of which direct I/O has fewer to pin.
        raw = np.empty(room + _HUGE_PAGE, np.uint8)
        start = -raw.ctypes.data % _HUGE_PAGE
        return raw[start : start + room]


class _Lease:
    """What arrays over a buffer refer to; when the last of them goes, the buffer is free."""

    def __init__(self, free: deque[np.ndarray], memory: np.ndarray) -> None:
        self._free = free
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)


#: What a conversion reads and makes pages in.
BUFFERS = BufferPool(64 * MiB)
