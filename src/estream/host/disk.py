"""The disk below a package, and what control groups let this process read from it."""

import os
from pathlib import Path

from estream.host import system
from estream.host.limits import cgroup_folders


def disk_of(path: Path) -> str:
    """The device number and, where the system tells it, the name of the disk that holds ``path``."""
    device = os.stat(path).st_dev
    number = system.device_number(device)
    link = Path("/sys/dev/block", number)
    return f"{number} {link.resolve().name}" if link.exists() else number


def disk_limits(path: Path) -> dict[str, int]:
    """Limits on reading from the disk below ``path``, of the tightest group: "rbps" bytes and "riops" requests per second."""
    device = os.stat(path).st_dev
    number = system.device_number(device)
    numbers = {number, _whole_disk(number)}
    found: dict[str, int] = {}
    for folder in cgroup_folders("blkio") + cgroup_folders("io"):
        for name, value in _limits_of(folder, numbers):
            found[name] = min(value, found.get(name, value))
    return found


def _whole_disk(number: str) -> str:
    """Limits are set on whole disks; a file system may lie on a partition of one."""
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
