"""Buffers come back when nothing refers to them, of the right size, and no more are kept than was said."""

import gc
import threading

import numpy as np

from estream.host.buffers import ALIGNMENT, BufferPool
from estream.host.sizes import MiB


def address(buffer: np.ndarray) -> int:
    return buffer.ctypes.data


def test_a_buffer_is_aligned_and_has_the_size_asked_for():
    pool = BufferPool(64 * MiB)
    for size in (0, 1, 4096, MiB // 4, MiB // 4 + 1, 3 * MiB):
        buffer = pool.take(size)
        assert (buffer.dtype, buffer.shape) == (np.uint8, (size,))
        assert size == 0 or address(buffer) % ALIGNMENT == 0
        buffer[:] = 7


def test_a_buffer_is_lent_again_only_when_no_view_of_it_is_left():
    pool = BufferPool(64 * MiB)
    first = pool.take(MiB)
    place, view = address(first), first[5:10].view(np.int8)
    del first
    gc.collect()
    assert address(pool.take(MiB)) != place
    del view
    gc.collect()
    # Sizes are rounded up, so it serves a request of nearly its size too.
    again = pool.take(MiB - 100)
    assert address(again) == place
    assert len(again) == MiB - 100


def test_unused_buffers_beyond_the_bound_are_freed():
    pool = BufferPool(2 * MiB)
    lent = [pool.take(MiB) for _ in range(6)]
    assert len({address(buffer) for buffer in lent}) == 6
    lent.clear()
    gc.collect()
    del lent
    keep = pool.take(3 * MiB)  # of another size, so that it goes through all that wait
    assert sum(memory.size for memory in pool._free) == 2 * MiB
    pool.keep(0)
    also = pool.take(3 * MiB)
    assert not pool._free
    del keep, also
    gc.collect()
    assert sum(memory.size for memory in pool._free) == 6 * MiB
    pool.clear()
    assert not pool._free


def test_threads_never_share_a_buffer():
    pool, wrong = BufferPool(8 * MiB), []

    def work(number: int) -> None:
        for _ in range(200):
            buffer = pool.take(MiB // 4)
            buffer[::4096] = number
            if (buffer[::4096] != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
