"""Reading small files whole. A pipe or a device under an expected name is refused before it is opened."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from estream.host.sizes import MiB, format_bytes

#: Manifests, tokenizers and compiled graphs: what a package has beside its weights.
LARGEST = 256 * MiB


def read_regular(path: Path, largest: int = LARGEST) -> bytes:
    """The bytes of a file of at most ``largest`` bytes.

    Raises:
        OSError: it cannot be read, is larger, or is not a regular file.

    """
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > largest:
            size = format_bytes(found.st_size)
            raise OSError(errno.EFBIG, f"{size}, at most {format_bytes(largest)} are expected", str(path))
        return file.read(found.st_size)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to be read.

    Raises:
        OSError: it cannot be opened, or is not a regular file.

    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(path, "rb")
