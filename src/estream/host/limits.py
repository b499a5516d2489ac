"""The memory and the processors that this process may use."""

from dataclasses import dataclass
from pathlib import Path

from estream import _native
from estream.errors import BudgetError, EstreamError
from estream.host.sizes import MiB, format_bytes

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
#: A cgroup v1 limit at or above this means no limit.
_NO_LIMIT = 1 << 60
#: Of free memory, what a buffer leaves for all else that a command allocates.
_NOT_TAKEN = 12 * MiB


#: The text of a limit is short; of a file that claims to be one, no more is read.
LONGEST_TEXT = 1 << 20
#: Numbers of the system have 64 bits.
_MOST_DIGITS = 20


def system_text(path: Path) -> str:
    """The text of a file of the system; "" where it cannot be read. Bytes that are not UTF-8 are replaced."""
    try:
        with open(path, "rb") as file:
            return file.read(LONGEST_TEXT).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def whole_number(text: str) -> int | None:
    """The number that a text is, None where it is none: "max", for example."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def resident_bytes() -> int:
    """Return the bytes of this process in memory now."""
    return _process_memory()[0]


def peak_resident_bytes() -> int:
    """Return the most bytes of this process in memory since it began, or since its peak was reset."""
    return _process_memory()[1]


def _process_memory() -> tuple[int, int]:
    try:
        return _native.process_memory()
    except RuntimeError as error:
        raise EstreamError(str(error)) from error


def available_bytes() -> int:
    """Return the bytes that the machine can give without swapping."""
    try:
        return _native.available_memory()
    except RuntimeError as error:
        raise EstreamError(str(error)) from error


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
    # The file is absent on Windows, and on Linux without control groups.
    for line in system_text(_PROC / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if controllers == "":
            roots = [_CGROUP, _CGROUP / "unified"]
        elif controller in controllers.split(","):
            roots = [_CGROUP / name for name in (controllers, controller) if ".." not in name and "/" not in name]
        else:
            continue
        for root in roots:
            folder = root / path.lstrip("/")
            # In a container the path may be the host's; then only the mounted root is visible.
            chain = [folder, *folder.parents] if _is_folder(folder) and ".." not in folder.parts else [root]
            folders += [f for f in chain if (f == root or root in f.parents) and _is_folder(f)]
    return folders


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _number(path: Path) -> int | None:
    return whole_number(system_text(path))


def _stat(path: Path, *keys: str) -> int:
    """The first of these keys in a file of keys and numbers; 0 where none is there."""
    pairs = [line.split() for line in system_text(path).splitlines()]
    rows = {pair[0]: whole_number(pair[1]) for pair in pairs if len(pair) == 2}
    return next((found for key in keys if (found := rows.get(key)) is not None), 0)


def _first(folder: Path, *names: str) -> int | None:
    return next((found for name in names if (found := _number(folder / name)) is not None), None)


def cgroup_memory() -> CgroupMemory | None:
    """Return the control group with the least free memory; None if none has a limit."""
    found: list[CgroupMemory] = []
    for folder in cgroup_folders("memory"):
        limit = _first(folder, "memory.max", "memory.limit_in_bytes")
        usage = _first(folder, "memory.current", "memory.usage_in_bytes")
        if limit is None or usage is None or limit >= _NO_LIMIT:
            continue
        cache = _stat(folder / "memory.stat", "total_inactive_file", "inactive_file")
        cache += _stat(folder / "memory.stat", "total_active_file", "active_file")
        found.append(CgroupMemory(limit, usage, min(cache, usage)))
    return min(found, key=lambda group: group.free, default=None)


def free_bytes() -> int:
    """Return the free bytes of the machine or of the tightest control group, whichever has less."""
    group = cgroup_memory()
    return available_bytes() if group is None else min(available_bytes(), group.free)


def fitting(wanted: int, least: int, what: str) -> int:
    """Return the bytes that a buffer may take: ``wanted``, or what is free where that is less.

    Raises:
        BudgetError: less than ``least`` is free. Taking it would get this process killed.

    """
    room = free_bytes() - _NOT_TAKEN
    if room < least:
        message = (
            f"{what} needs {format_bytes(least + _NOT_TAKEN)} of free memory, and {format_bytes(room + _NOT_TAKEN)} are free"
        )
        raise BudgetError(f"{message}; grant the process more", resident_bytes() + least + _NOT_TAKEN)
    return min(wanted, room)


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
        words = system_text(folder / "cpu.max").split()
        if len(words) == 2:
            quota, period = map(whole_number, words)
        else:
            quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def default_threads() -> int:
    """Return the number of processors in the affinity mask, at most the CPU quota rounded down, at least 1."""
    allowed = _native.usable_processors()
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, int(quota)))
