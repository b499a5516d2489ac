"""Writing a large file with direct I/O, where the file system has it."""

import mmap
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from estream.host import system
from estream.host.sizes import MiB

_BLOCK = 4096
_BUFFER = 8 * MiB
_LARGE = 1 * MiB


class DirectFile:
    """Appends bytes past the page cache. The length must be a multiple of 4096 when the file is closed.

    Nothing reads a package again right after conversion, and copying it into the page cache takes longer than writing it.
    """

    def __init__(self, path: Path) -> None:
        self._handle = system.open_for_writing(path)
        self._memory = mmap.mmap(-1, _BUFFER)
        self._buffer = np.frombuffer(self._memory, np.uint8)
        self._filled = 0
        self.length = 0

    def write(self, data: np.ndarray) -> None:
        """Append uint8 data. Large aligned data is written from its own memory, other data through a buffer."""
        done = 0
        if data.size >= _LARGE and data.ctypes.data % _BLOCK == 0 and self._filled % _BLOCK == 0:
            done = data.size // _BLOCK * _BLOCK
            self._flush()
            self._put(data[:done])
        while done < data.size:
            n = min(data.size - done, _BUFFER - self._filled)
            self._buffer[self._filled : self._filled + n] = data[done : done + n]
            self._filled += n
            done += n
            if self._filled == _BUFFER:
                self._flush()
        self.length += data.size

    def pad(self, multiple: int) -> None:
        """Append zeros until the length is a multiple of ``multiple``."""
        self.write(np.zeros(-self.length % multiple, np.uint8))

    def sync(self) -> None:
        """Write everything to the disk and wait for it."""
        self._flush()
        os.fsync(self._handle)

    def _flush(self) -> None:
        self._put(self._buffer[: self._filled])
        self._filled = 0

    def _put(self, data: np.ndarray) -> None:
        while data.size:
            done = system.write_once(self._handle, data.data)
            # A direct write can only continue at an aligned offset.
            if done % _BLOCK:
                os.lseek(self._handle, -(done % _BLOCK), os.SEEK_CUR)
                done -= done % _BLOCK
            data = data[done:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._handle)
