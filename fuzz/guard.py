"""Watches what a process opens, makes and removes, so that an input which reaches beyond its folder is noticed.

Only calls from Python are seen. An audit hook cannot be taken away again, so a process that arms it is one for fuzzing alone.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import estream

#: What any process may read: itself, its machine, and what it imports.
_READABLE = (
    "/proc",
    "/sys",
    "/dev/null",
    "/dev/urandom",
    "/etc",
    "/usr/lib",
    "/usr/share/zoneinfo",
    sys.prefix,
    sys.base_prefix,
    sysconfig.get_path("purelib"),
    str(Path(estream.__file__).parent),
    str(Path(__file__).parent),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: The arguments of these events that are paths, and those that are the open folders which these count from.
_CHANGES: dict[str, tuple[tuple[int, int], ...]] = {
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
}


class Guard:
    """Notes every file outside ``folder`` that is opened or changed while it is armed, and refuses it."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.abspath(folder)
        self._armed = False
        self.touched: list[str] = []
        sys.addaudithook(self._hear)

    @contextmanager
    def armed(self) -> Iterator[None]:
        self.touched = []
        self._armed = True
        try:
            yield
        finally:
            self._armed = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._armed:
            return
        if event == "open":
            path, mode, flags = arguments
            if mode is None and isinstance(path, str) and not path.startswith("/") and "/" not in path:
                return  # os.open within an open folder, which was judged when it was opened
            writes = bool((flags or 0) & _WRITING) or (isinstance(mode, str) and any(c in mode for c in "wax+"))
            self._judge(event, path, writes)
        elif event in _CHANGES:
            for path, folder in _CHANGES[event]:
                if arguments[folder] == -1:
                    self._judge(event, arguments[path], True)

    def _judge(self, event: str, path: Any, writes: bool) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # an open file
        place = os.path.abspath(os.fsdecode(path))
        if place == os.devnull:
            return  # where a child process has its standard error
        if os.path.basename(place).startswith("<"):
            return  # Python looks for the line of a syntax error in "<template>"
        if _below(place, self._folder) or (not writes and any(_below(place, root) for root in _READABLE)):
            return
        self.touched.append(f"{event} {place}")
        raise PermissionError(13, "outside the folder of this input", place)


def _below(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip("/") + "/")
