"""The disk that holds a package, and the control groups' limits on reading from it."""

import os
from pathlib import Path

from estream.host import system
from estream.host.limits import cgroup_folders


def disk_of(path: Path) -> str:
    """Return the device number of the disk that holds ``path`` and, if the system has it, the disk's name."""
    device = os.stat(path).st_dev
    number = system.device_number(device)
    link = Path("/sys/dev/block", number)
    return f"{number} {link.resolve().name}" if link.exists() else number


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


def _whole_disk(number: str) -> str:
    """The number of the disk that a partition belongs to, since limits apply to whole disks; "" for other devices."""
    folder = Path("/sys/dev/block", number).resolve()
    parent = folder.parent / "dev"
    return parent.read_text().strip() if (folder / "partition").exists() and parent.exists() else ""


def _limits_of(folder: Path, numbers: set[str]) -> list[tuple[str, int]]:
    found = []
    for file, name in (("blkio.throttle.read_bps_device", "rbps"), ("blkio.throttle.read_iops_device", "riops")):
        for number, value in _rows(folder / file):
            if number in numbers:
                found.append((name, int(value)))
    for number, *values in _rows(folder / "io.max"):
        pairs = [value.partition("=") for value in values]
        found += [(name, int(value)) for name, _, value in pairs if number in numbers and name[0] == "r" and value.isdigit()]
    return found


def _rows(file: Path) -> list[list[str]]:
    try:
        return [line.split() for line in file.read_text().splitlines() if line.strip()]
    except OSError:
        return []
