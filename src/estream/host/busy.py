"""How busy others keep processors and disk: what the system counted between two moments, less what this process did.

Counted are the processors that this process may use, with what a hypervisor took away from them. Interrupts are left out, since
most of them serve our own reads. Neighbours that share memory bandwidth alone, or a disk behind the virtual one, are not seen.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from estream.host import system
from estream.host.disk import DiskCounters, disk_counters, own_disk_bytes
from estream.host.limits import system_text

_STAT = Path("/proc/stat")
#: A machine of which others take a larger share is busy.
BUSY_SHARE = 0.1
#: The system counts in steps of 10 ms: over less time a share means nothing.
_LEAST_SECONDS = 0.1


@dataclass(frozen=True)
class Others:
    """The shares that others took of the processors' time and of the disk's; None where the system does not tell."""

    processors: float | None
    disk: float | None

    @property
    def share(self) -> float | None:
        """The larger share; None where neither is known."""
        return max((s for s in (self.processors, self.disk) if s is not None), default=None)

    @property
    def busy(self) -> bool:
        """Whether it is known that the machine is not idle."""
        return (self.share or 0.0) > BUSY_SHARE

    def __str__(self) -> str:
        parts = ((self.processors, "processors"), (self.disk, "disk"))
        return ", ".join(f"{s:.0%} of the {what}" for s, what in parts if s is not None) or "unknown"

    @staticmethod
    def mean(of: Sequence["Others"]) -> "Others":
        """The means over moments of equal length; those that are unknown do not count."""
        known = [[s for s in shares if s is not None] for shares in ([o.processors for o in of], [o.disk for o in of])]
        processors, disk = (sum(shares) / len(shares) if shares else None for shares in known)
        return Others(processors, disk)


@dataclass(frozen=True)
class Counters:
    """One moment: the time, this process's processor seconds, ticks (used, all) of ``count`` processors, the disk's work."""

    at: float
    own_s: float
    ticks: tuple[int, int]
    count: int
    disk: DiskCounters | None
    own_bytes: int | None


def count(path: Path) -> Counters:
    """The counters now; the disk is the one that holds ``path``."""
    usable = system.processor_numbers()
    rows = [line.split() for line in system_text(_STAT).splitlines() if line.startswith("cpu")]
    mine = [_numbers(words) for words in rows if words[0][3:].isdigit() and int(words[0][3:]) in usable]
    # user, nice, system, idle, waiting for disks, two kinds of interrupts, stolen
    used = sum(sum(n[:3]) + n[7] for n in mine)
    return Counters(
        at=time.perf_counter(),
        own_s=time.process_time(),
        ticks=(used, sum(map(sum, mine))),
        count=len(mine),
        disk=disk_counters(path),
        own_bytes=own_disk_bytes(),
    )


def between(before: Counters, after: Counters) -> Others:
    """What others took meanwhile. The disk's busy time is divided by bytes."""
    elapsed = after.at - before.at
    if elapsed < _LEAST_SECONDS:
        return Others(None, None)
    return Others(_processors(before, after, elapsed), _disk(before, after, elapsed))


def look(path: Path, seconds: float = 0.25) -> Others:
    """What others take while this process waits for so long."""
    before = count(path)
    time.sleep(seconds)
    return between(before, count(path))


def _processors(before: Counters, after: Counters, elapsed: float) -> float | None:
    used, every = (b - a for a, b in zip(before.ticks, after.ticks, strict=True))
    if every <= 0 or before.count != after.count:
        return None
    own = (after.own_s - before.own_s) / (elapsed * after.count)
    return min(1.0, max(0.0, used / every - own))


def _disk(before: Counters, after: Counters, elapsed: float) -> float | None:
    if before.disk is None or after.disk is None or before.own_bytes is None or after.own_bytes is None:
        return None
    every, own = after.disk.bytes - before.disk.bytes, after.own_bytes - before.own_bytes
    if every <= 0:
        return 0.0
    busy = min(1.0, (after.disk.busy_s - before.disk.busy_s) / elapsed)
    return max(0.0, busy * (1 - own / every))


def _numbers(words: Sequence[str]) -> list[int]:
    numbers = [int(word) if word.isdigit() else 0 for word in words[1:9]]
    return numbers + [0] * (8 - len(numbers))
