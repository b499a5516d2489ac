"""Reading small files whole, or for their checksum. A pipe or a device under an expected name is refused unopened."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

import numpy as np

from estream import _native
from estream.host.sizes import MiB, format_bytes

#: Manifests, tokenizers and compiled graphs: what a package has beside its weights.
LARGEST = 256 * MiB
_BLOCK = 1 * MiB


def read_regular(path: Path, largest: int = LARGEST) -> bytes:
    """The bytes of a file of at most ``largest`` bytes.

    Raises:
        OSError: it cannot be read, is larger, or is not a regular file.

    """
    with open_regular(path) as file:
        return file.read(_size(file, largest))


def checksum_regular(path: Path, largest: int = LARGEST) -> int:
    """The XXH3-64 of a file of at most ``largest`` bytes, of which few are in memory at once.

    Raises:
        OSError: it cannot be read, is larger, or is not a regular file.

    """
    total = _native.Checksum()
    block = memoryview(bytearray(_BLOCK))
    with open_regular(path) as file:
        left = _size(file, largest)
        while left and (count := file.readinto(block[:left])):
            total.add(np.frombuffer(block, np.uint8, count))
            left -= count
    return total.value


def _size(file: BufferedReader, largest: int) -> int:
    size = os.fstat(file.fileno()).st_size
    if size > largest:
        raise OSError(errno.EFBIG, f"{format_bytes(size)}, at most {format_bytes(largest)} are expected", file.name)
    return size


def open_regular(path: Path) -> BufferedReader:
    """Open a file to be read.

    Raises:
        OSError: it cannot be opened, or is not a regular file.

    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(path, "rb")
