"""Python code that differs between operating systems; ``csrc/platform/`` is its counterpart in native code.

On Windows estream reads no limits of job objects, writes files through the cache, and does not lock folders: it recognises a
running conversion by its process number alone (docs/windows.md).
"""

import errno
import functools
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from estream import _native

logger = logging.getLogger("estream")

if sys.platform == "win32":
    import platform

    def open_for_reading(path: Path, direct: bool) -> int:
        """Open a file to be read once. Python reads through Windows's cache; only native readers read past it."""
        del direct
        return os.open(path, os.O_RDONLY | os.O_BINARY | os.O_SEQUENTIAL)

    def open_for_writing(path: Path) -> int:
        """Create a file, or empty it."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_BINARY, 0o644)

    def read_at(handle: int, buffer: memoryview, offset: int) -> int:
        """Read once into ``buffer``. Returns the number of bytes, 0 at the end of the file. Moves the handle's position."""
        os.lseek(handle, offset, os.SEEK_SET)
        with open(handle, "rb", buffering=0, closefd=False) as file:
            return file.readinto(buffer) or 0

    def write_once(handle: int, data: memoryview) -> int:
        """Write once. Returns the number of bytes."""
        return os.write(handle, data)

    def forget(handle: int, offset: int, size: int) -> None:
        """Do nothing: Windows counts cached pages of files as free memory."""

    @contextmanager
    def hold_folder(folder: Path) -> Iterator[None]:
        """Do nothing: Windows cannot lock folders, and does not rename an open one."""
        del folder
        yield

    def is_held(folder: Path) -> bool:
        """Return false: see :func:`hold_folder`."""
        del folder
        return False

    @contextmanager
    def hold_file(path: Path | None, wait_s: float) -> Iterator[bool]:
        """Yield true at once: on Windows two processes may do the same work."""
        del path, wait_s
        yield True

    def processor_numbers() -> frozenset[int]:
        """Return an empty set: Windows has no file that counts the work of single processors."""
        return frozenset()

    def sync_folder(path: Path) -> None:
        """Do nothing: NTFS keeps a journal of renames, and Windows cannot open a folder for this."""

    def locking_limit() -> tuple[int | None, str]:
        """Return the bytes that this process may lock into memory, None for no limit, and the limit's origin."""
        return None, "Windows enlarges the working set by what is locked"

    @contextmanager
    def nameless_file(folder: Path) -> Iterator[tuple[int, Path]]:
        """Create a file that is gone when the block ends. Yields its handle and a path that opens it."""
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".estream-") as file:
            yield file.fileno(), Path(file.name)

    def address_limit() -> int | None:
        """Return None: Windows does not limit a process's addresses by itself."""
        return None

    def processor_name() -> str:
        """Return the processor's model name, or the architecture if the system has no name."""
        return platform.processor() or platform.machine()

    def device_number(device: int) -> str:
        """Format ``st_dev`` in the system's notation: the serial number of a volume."""
        return f"{device:08X}"

    def call_after_fork(callback: Callable[[], None]) -> None:
        """Do nothing: Windows does not fork."""

else:
    import fcntl
    import resource

    def open_for_reading(path: Path, direct: bool) -> int:
        """Open a file to be read once, for direct I/O if ``direct`` is true and the file system has it."""
        if direct:
            try:
                return os.open(path, os.O_RDONLY | os.O_DIRECT)
            except OSError:
                # The file system has no direct I/O. If there is another reason, opening fails again.
                return os.open(path, os.O_RDONLY)
        return os.open(path, os.O_RDONLY)

    def open_for_writing(path: Path) -> int:
        """Create a file, or empty it, for direct I/O if the file system has it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            return os.open(path, flags | os.O_DIRECT, 0o644)
        except OSError:
            # The file system has no direct I/O. If there is another reason, opening fails again.
            return os.open(path, flags, 0o644)

    def read_at(handle: int, buffer: memoryview, offset: int) -> int:
        """Read once into ``buffer``. Returns the number of bytes, 0 at the end of the file."""
        try:
            return os.preadv(handle, [buffer], offset)
        except OSError as error:
            if not _made_buffered(handle, error):
                raise
            return os.preadv(handle, [buffer], offset)

    def write_once(handle: int, data: memoryview) -> int:
        """Write once. Returns the number of bytes."""
        try:
            return os.write(handle, data)
        except OSError as error:
            if not _made_buffered(handle, error):
                raise
            return os.write(handle, data)

    def _made_buffered(handle: int, error: OSError) -> bool:
        """Leave direct I/O where a file system opens files for it and then refuses to read or write them. Says so once."""
        flags = fcntl.fcntl(handle, fcntl.F_GETFL)
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP) or not flags & os.O_DIRECT:
            return False
        fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        _say_buffered()
        return True

    @functools.cache
    def _say_buffered() -> None:
        logger.info("this file system has no direct I/O, so files are read and written through the page cache")

    def forget(handle: int, offset: int, size: int) -> None:
        """Drop these bytes from the page cache."""
        os.posix_fadvise(handle, offset, size, os.POSIX_FADV_DONTNEED)

    @contextmanager
    def hold_folder(folder: Path) -> Iterator[None]:
        """Lock a folder until the block ends. The system releases the lock if this process is killed."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def is_held(folder: Path) -> bool:
        """Return whether a process holds the folder; false if the folder is gone."""
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

    @contextmanager
    def hold_file(path: Path | None, wait_s: float) -> Iterator[bool]:
        """Lock a file, created where it is absent, until the block ends. The system releases it if this process is killed.

        Yields whether it is locked within ``wait_s`` seconds; true also for None, and where files cannot be created or locked.
        """
        if path is None:
            yield True
            return
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            yield True
            return
        try:
            yield _locked(handle, time.monotonic() + wait_s)
        finally:
            os.close(handle)

    def _locked(handle: int, end: float) -> bool:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    return False
                time.sleep(0.05)
            except OSError:  # a file system without locks
                return True
            else:
                return True

    def processor_numbers() -> frozenset[int]:
        """Return the processors that this process may use, as the system numbers them."""
        return frozenset(os.sched_getaffinity(0))

    def sync_folder(path: Path) -> None:
        """Write renames in a folder to the disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def locking_limit() -> tuple[int | None, str]:
        """Return the bytes that this process may lock into memory, None for no limit, and the limit's origin."""
        limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return None if limit == resource.RLIM_INFINITY else limit, "ulimit -l"

    @contextmanager
    def nameless_file(folder: Path) -> Iterator[tuple[int, Path]]:
        """Create a file without a name, which is gone however this process ends. Yields its handle and a path that opens it."""
        # With O_TMPFILE, or unlinked at once.
        with tempfile.TemporaryFile(dir=folder, prefix=".estream-", buffering=0) as file:
            yield file.fileno(), Path(f"/proc/self/fd/{file.fileno()}")

    def address_limit() -> int | None:
        """Return the bytes of addresses that this process may use, None for no limit."""
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        return None if limit == resource.RLIM_INFINITY else limit

    def processor_name() -> str:
        """Return the processor's model name, or the architecture if the system has no name."""
        try:
            text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
        except OSError:
            text = ""
        for line in text.splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        return os.uname().machine

    def device_number(device: int) -> str:
        """Format ``st_dev`` in the system's notation: major and minor number."""
        return f"{os.major(device)}:{os.minor(device)}"

    def call_after_fork(callback: Callable[[], None]) -> None:
        """Register a callback that runs in every forked child."""
        os.register_at_fork(after_in_child=callback)


def process_lives(process: str) -> bool:
    """Return whether a process runs; ``process`` is its number as text."""
    return process.isdecimal() and len(process) < 10 and _native.process_lives(int(process))
