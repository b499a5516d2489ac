"""What differs between operating systems, for Python; ``csrc/platform/`` is the same for native code.

Windows has no control groups, no direct writes and no locks on folders here: limits of job objects are not read, files are
written through its cache, and a conversion is known to live by its process alone (docs/windows.md).
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from estream import _native

if sys.platform == "win32":
    import platform

    def open_for_reading(path: Path, direct: bool) -> int:
        """Open a file to be read once. Native readers read past the cache of Windows, Python through it."""
        del direct
        return os.open(path, os.O_RDONLY | os.O_BINARY | os.O_SEQUENTIAL)

    def open_for_writing(path: Path) -> int:
        """Create or empty a file."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_BINARY, 0o644)

    def read_at(handle: int, buffer: memoryview, offset: int) -> int:
        """Read once into ``buffer``; the bytes read, 0 at the end of the file. Moves the handle's own position."""
        os.lseek(handle, offset, os.SEEK_SET)
        with open(handle, "rb", buffering=0, closefd=False) as file:
            return file.readinto(buffer) or 0

    def forget(handle: int, offset: int, size: int) -> None:
        """Nothing: cached pages of files are free memory to Windows, and count against no process."""

    @contextmanager
    def hold_folder(folder: Path) -> Iterator[None]:
        """Nothing: Windows locks no folders, and would not rename one that is open."""
        del folder
        yield

    def is_held(folder: Path) -> bool:
        """Never: see :func:`hold_folder`."""
        del folder
        return False

    def sync_folder(path: Path) -> None:
        """Nothing: NTFS keeps a journal of renames, and Windows opens no folders for this."""

    def locking_limit() -> tuple[int | None, str]:
        """Bytes that this process may lock into memory, None for any number, and where that is said."""
        return None, "Windows enlarges the working set by what is locked"

    def processor_name() -> str:
        """The processor's model name, or the architecture where the system does not tell."""
        return platform.processor() or platform.machine()

    def device_number(device: int) -> str:
        """``st_dev`` in the system's own notation: the serial number of a volume."""
        return f"{device:08X}"

    def call_after_fork(callback: Callable[[], None]) -> None:
        """Nothing: Windows does not fork."""

else:
    import fcntl
    import resource

    def open_for_reading(path: Path, direct: bool) -> int:
        """Open a file to be read once, past the page cache if ``direct`` and the file system can."""
        if direct:
            try:
                return os.open(path, os.O_RDONLY | os.O_DIRECT)
            except OSError:
                # The file system has no direct I/O; a file that cannot be opened fails here again.
                return os.open(path, os.O_RDONLY)
        return os.open(path, os.O_RDONLY)

    def open_for_writing(path: Path) -> int:
        """Create or empty a file, to be written past the page cache where the file system can."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            return os.open(path, flags | os.O_DIRECT, 0o644)
        except OSError:
            # The file system has no direct I/O; a target that cannot be written fails here again.
            return os.open(path, flags, 0o644)

    def read_at(handle: int, buffer: memoryview, offset: int) -> int:
        """Read once into ``buffer``; the bytes read, 0 at the end of the file."""
        return os.preadv(handle, [buffer], offset)

    def forget(handle: int, offset: int, size: int) -> None:
        """Tell the page cache that these bytes will not be needed again."""
        os.posix_fadvise(handle, offset, size, os.POSIX_FADV_DONTNEED)

    @contextmanager
    def hold_folder(folder: Path) -> Iterator[None]:
        """Lock a folder until the block ends; the system lets go of it should this process be killed."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def is_held(folder: Path) -> bool:
        """Whether a process holds the folder; not where it is gone."""
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def sync_folder(path: Path) -> None:
        """Bring what was renamed in a folder to the disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def locking_limit() -> tuple[int | None, str]:
        """Bytes that this process may lock into memory, None for any number, and where that is said."""
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return None if limit == resource.RLIM_INFINITY else limit, "ulimit -l"

    def processor_name() -> str:
        """The processor's model name, or the architecture where the system does not tell."""
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        return os.uname().machine

    def device_number(device: int) -> str:
        """``st_dev`` in the system's own notation."""
        return f"{os.major(device)}:{os.minor(device)}"

    def call_after_fork(callback: Callable[[], None]) -> None:
        """Have every forked child call this first."""
        os.register_at_fork(after_in_child=callback)


def process_lives(process: str) -> bool:
    """Whether a process lives, by its number as text."""
    return process.isdecimal() and len(process) < 10 and _native.process_lives(int(process))
