"""The disk that holds a package, and the control groups' limits on reading from it."""

import os
from pathlib import Path

from estream.host import system
from estream.host.limits import cgroup_folders, system_text, whole_number

_BLOCK = Path("/sys/dev/block")


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
