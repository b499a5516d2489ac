"""The memory and the processors that this process may use."""

from dataclasses import dataclass
from pathlib import Path

from estream import _native
from estream.host.sizes import MiB

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
#: A cgroup v1 limit at or above this means no limit.
_NO_LIMIT = 1 << 60


def resident_bytes() -> int:
    """Return the bytes of this process in memory now."""
    return _native.process_memory()[0]


def peak_resident_bytes() -> int:
    """Return the most bytes of this process in memory since it began, or since its peak was reset."""
    return _native.process_memory()[1]


def available_bytes() -> int:
    """Return the bytes that the machine can give without swapping."""
    return _native.available_memory()


@dataclass(frozen=True)
class CgroupMemory:
    """A control group's memory in bytes: its limit, its usage, and the part of it that is reclaimable page cache."""

    limit: int
    usage: int
    reclaimable: int

    @property
    def free(self) -> int:
        return max(0, self.limit - self.usage + self.reclaimable)


def cgroup_folders(controller: str) -> list[Path]:
    """Return the folders of this process's control groups for a controller, innermost first; cgroup v1 or v2."""
    folders: list[Path] = []
    listed = _PROC / "self/cgroup"
    # The file is absent on Windows, and on Linux without control groups.
    for line in listed.read_text().splitlines() if listed.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = [_CGROUP, _CGROUP / "unified"]
        elif controller in controllers.split(","):
            roots = [_CGROUP / controllers, _CGROUP / controller]
        else:
            continue
        for root in roots:
            folder = root / path.lstrip("/")
            # In a container the path may be the host's; then only the mounted root is visible.
            chain = [folder, *folder.parents] if folder.is_dir() else [root]
            folders += [f for f in chain if f.is_dir() and (f == root or root in f.parents)]
    return folders


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.lstrip("-").isdigit() else None


def _stat(path: Path, *keys: str) -> int:
    try:
        rows = dict(line.split() for line in path.read_text().splitlines())
    except OSError:
        return 0
    return next((int(rows[key]) for key in keys if key in rows), 0)


def cgroup_memory() -> CgroupMemory | None:
    """Return the control group with the least free memory; None if none has a limit."""
    found: list[CgroupMemory] = []
    for folder in cgroup_folders("memory"):
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        usage = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if limit is None or usage is None or limit >= _NO_LIMIT:
            continue
        cache = _stat(folder / "memory.stat", "total_inactive_file", "inactive_file")
        cache += _stat(folder / "memory.stat", "total_active_file", "active_file")
        found.append(CgroupMemory(limit, usage, cache))
    return min(found, key=lambda group: group.free, default=None)


def free_bytes() -> int:
    """Return the free bytes of the machine or of the tightest control group, whichever has less."""
    group = cgroup_memory()
    return available_bytes() if group is None else min(available_bytes(), group.free)


def largest_budget() -> int:
    """Return the bytes that this process could grow to if it took all free memory."""
    return resident_bytes() + free_bytes()


def default_budget() -> int:
    """Return the default budget: this process's memory and what is free, minus 1/16 of it and at least 64 MiB."""
    free = free_bytes()
    return resident_bytes() + free - max(64 * MiB, free // 16)


def budget_of(memory: int | None) -> int:
    """Return the budget for ``--memory``: at most what the machine has, since the kernel kills a process that takes more."""
    return default_budget() if memory is None else min(memory, largest_budget())


def cpu_quota() -> float | None:
    """Return the tightest CPU quota of the control groups, in processors; None if there is none."""
    quotas = []
    for folder in cgroup_folders("cpu"):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except OSError:
            quota, period = str(_number(folder / "cpu.cfs_quota_us") or -1), str(_number(folder / "cpu.cfs_period_us") or 0)
        if quota.isdigit() and int(quota) > 0 and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def default_threads() -> int:
    """Return the number of processors in the affinity mask, at most the CPU quota rounded down, at least 1."""
    allowed = _native.usable_processors()
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, int(quota)))
