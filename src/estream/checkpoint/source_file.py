"""Reading large files once: with direct I/O where the file system has it, else without leaving pages in the page cache."""

import os
from pathlib import Path

import numpy as np

from estream.errors import CheckpointError
from estream.host import system
from estream.host.buffers import ALIGNMENT, BUFFERS
from estream.host.sizes import MiB, round_up

#: Below this size a buffered read is cheaper than an aligned direct read.
_SMALLEST_DIRECT = 1 * MiB


def read_bytes(file: Path, offset: int, size: int) -> np.ndarray:
    """Read bytes [offset, offset + size) of a file as uint8 [size].

    Raises:
        CheckpointError: the file cannot be read, or ends before ``offset + size``.

    """
    try:
        handle = system.open_for_reading(file, direct=size >= _SMALLEST_DIRECT)
        try:
            data = _read_aligned(file, handle, offset, size)
            # A buffered read has left pages in the cache, and a checkpoint is read only once.
            system.forget(handle, offset, size)
            return data
        finally:
            os.close(handle)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error


def _read_aligned(file: Path, handle: int, offset: int, size: int) -> np.ndarray:
    first, end = offset // ALIGNMENT * ALIGNMENT, offset + size
    buffer = BUFFERS.take(round_up(end - first, ALIGNMENT))
    done = 0
    while first + done < end:
        n = system.read_at(handle, buffer[done:].data, first + done)
        if first + done + n < end and n < ALIGNMENT:
            raise CheckpointError(f"{file}: ends at byte {first + done + n}, inside a tensor; the file is truncated")
        # A direct read can only continue at an aligned offset.
        done += n if first + done + n >= end else n // ALIGNMENT * ALIGNMENT
    return buffer[offset - first : end - first]
