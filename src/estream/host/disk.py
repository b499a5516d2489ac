"""The disk that holds a package, and the control groups' limits on reading from it."""

import os
from dataclasses import dataclass
from pathlib import Path

from estream.host import system
from estream.host.limits import cgroup_folders, system_text, whole_number

_BLOCK = Path("/sys/dev/block")
_DISKSTATS = Path("/proc/diskstats")
#: The system counts sectors of so many bytes, whatever the disk's own are.
_SECTOR = 512


@dataclass(frozen=True)
class DiskCounters:
    """What a disk has done since the system started: bytes read and written, and seconds in which it was not idle."""

    bytes: int
    busy_s: float


def disk_of(path: Path) -> str:
    """Return the device number of the disk that holds ``path`` and, if the system has it, the disk's name."""
    device = os.stat(path).st_dev
    number = system.device_number(device)
    link = _BLOCK / number
    return f"{number} {link.resolve().name}" if _exists(link) else number


def disk_limits(path: Path) -> dict[str, int]:
    """Return the tightest limits on reads from the disk of ``path``: "rbps" in bytes, "riops" in requests per second."""
    device = os.stat(path).st_dev
    number = system.device_number(device)
    numbers = {number, _whole_disk(number)}
    found: dict[str, int] = {}
    for folder in cgroup_folders("blkio") + cgroup_folders("io"):
        for name, value in _limits_of(folder, numbers):
            found[name] = min(value, found.get(name, value))
    return found


def disk_counters(path: Path) -> DiskCounters | None:
    """Return the counters of the disk that holds ``path``; None where the system has none.

    Of a file system that hides its disk (an overlay, for example) those of all disks together.
    """
    try:
        number = system.device_number(os.stat(path).st_dev)
    except OSError:  # a loaded package does without its folder
        return None
    rows = [words for line in system_text(_DISKSTATS).splitlines() if len(words := line.split()) >= 13]
    wanted = {_whole_disk(number) or number}
    mine = [words for words in rows if ":".join(words[:2]) in wanted]
    if not mine:
        mine = [words for words in rows if "/" not in words[2] and _exists(Path("/sys/block") / words[2] / "device")]
    counted = [[whole_number(words[i]) or 0 for i in (5, 9, 12)] for words in mine]
    if not counted:
        return None
    return DiskCounters(_SECTOR * sum(c[0] + c[1] for c in counted), max(c[2] for c in counted) / 1000)


def own_disk_bytes() -> int | None:
    """Return the bytes that this process has had read from disks and written to them; None where the system does not count."""
    rows = dict(line.split(": ", 1) for line in system_text(Path("/proc/self/io")).splitlines() if ": " in line)
    counted = [whole_number(rows.get(name, "")) for name in ("read_bytes", "write_bytes")]
    return None if None in counted else sum(n or 0 for n in counted)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _whole_disk(number: str) -> str:
    """The number of the disk that a partition belongs to, since limits apply to whole disks; "" for other devices."""
    folder = (_BLOCK / number).resolve()
    return system_text(folder.parent / "dev").strip() if _exists(folder / "partition") else ""


def _limits_of(folder: Path, numbers: set[str]) -> list[tuple[str, int]]:
    """The limits of one control group. Rows and values that are no limits are passed over."""
    found = []
    for file, name in (("blkio.throttle.read_bps_device", "rbps"), ("blkio.throttle.read_iops_device", "riops")):
        found += [(name, words[1]) for words in _rows(folder / file, numbers) if len(words) == 2]
    for _, *words in _rows(folder / "io.max", numbers):
        pairs = [word.partition("=") for word in words]
        found += [(name, value) for name, _, value in pairs if name in ("rbps", "riops")]
    return [(name, limit) for name, value in found if (limit := whole_number(value))]


def _rows(file: Path, numbers: set[str]) -> list[list[str]]:
    rows = [line.split() for line in system_text(file).splitlines()]
    return [words for words in rows if words and words[0] in numbers]
