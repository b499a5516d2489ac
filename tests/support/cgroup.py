"""Running a command inside a real memory or CPU control group, version 1 or 2."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@dataclass
class Group:
    """A control group; ``v2`` says which names its files have."""

    path: Path
    v2: bool

    def run(self, command: Sequence[str | Path], **options) -> subprocess.CompletedProcess[str]:
        """Run a command whose process has joined the group before it starts."""
        join = f"echo $$ > '{self.path}/cgroup.procs'; exec \"$@\""
        return subprocess.run(
            ["sh", "-c", join, "sh", *map(str, command)], capture_output=True, text=True, check=False, **options
        )

    @property
    def peak_bytes(self) -> int:
        name = "memory.peak" if self.v2 else "memory.max_usage_in_bytes"
        return int((self.path / name).read_text())


@contextmanager
def _group(controller: str, v1_settings: dict[str, str], v2_settings: dict[str, str]) -> Iterator[Group]:
    if os.geteuid() != 0:
        pytest.skip("control groups need root")
    v1 = ROOT / controller
    v2 = next((r for r in (ROOT, ROOT / "unified") if controller in _controllers(r)), None)
    if v2 is None and not (v1 / "cgroup.procs").exists():
        pytest.skip(f"this machine offers no {controller} control group")
    path = (v2 or v1) / f"estream-test-{os.getpid()}"
    path.mkdir()
    try:
        for name, value in (v2_settings if v2 else v1_settings).items():
            (path / name).write_text(value)
        yield Group(path, v2 is not None)
    finally:
        path.rmdir()


def _controllers(root: Path) -> list[str]:
    try:
        return (root / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []


@contextmanager
def memory_group(limit: int) -> Iterator[Group]:
    """At most ``limit`` bytes, page cache included, no swap."""
    with _group("memory", {"memory.limit_in_bytes": str(limit)}, {"memory.max": str(limit), "memory.swap.max": "0"}) as group:
        yield group


@contextmanager
def cpu_group(quota: float) -> Iterator[Group]:
    """``quota`` processors' worth of time."""
    period = 100_000
    v1 = {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(int(quota * period))}
    with _group("cpu", v1, {"cpu.max": f"{int(quota * period)} {period}"}) as group:
        yield group


@contextmanager
def disk_group(path: Path, bytes_per_second: int) -> Iterator[Group]:
    """Reads from the disk below ``path`` at most so fast."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    if not Path(f"/sys/dev/block/{number}").exists():
        pytest.skip(f"{path} does not lie on a disk of its own")
    v1 = {"blkio.throttle.read_bps_device": f"{number} {bytes_per_second}"}
    name = "io" if "io" in _controllers(ROOT) else "blkio"
    with _group(name, v1, {"io.max": f"{number} rbps={bytes_per_second}"}) as group:
        yield group


def heed_interrupts() -> None:
    """Run before a program that is to be interrupted: where tests run in the background of a script, it would ignore that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def estream_command(*arguments: str | Path) -> list[str | Path]:
    """The command line of this very interpreter."""
    return [sys.executable, "-c", "from estream.cli.main import main; main()", *arguments]
