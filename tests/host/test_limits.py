"""What the machine and its control groups limit is seen, and obeyed."""

import json
import subprocess
from pathlib import Path

import pytest
from cgroup import cpu_group, estream_command

from estream.errors import BudgetError
from estream.host import limits
from estream.package.package import Package


def test_machine_facts_are_plausible():
    assert 0 < limits.resident_bytes() <= limits.peak_resident_bytes()
    assert limits.default_threads() >= 1
    assert limits.default_budget() < limits.resident_bytes() + limits.available_bytes()


def test_a_cpu_quota_and_an_affinity_mask_give_fewer_threads(demo_package: Package):
    command = estream_command("tune", demo_package.path, "--json")
    with cpu_group(1.0) as group:
        key = json.loads(group.run(command).stdout)["key"]
    assert (key["threads"], key["cpu_quota"]) == (1, 1.0)
    run = subprocess.run(["taskset", "-c", "0", *map(str, command)], capture_output=True, text=True, check=True)
    key = json.loads(run.stdout)["key"]
    assert (key["threads"], key["affinity"]) == (1, 1)


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups_of_both_versions_are_read(tmp_path: Path, monkeypatch, version: int):
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    if version == 2:
        folder = root / "box"
        folder.mkdir(parents=True)
        (proc / "self/cgroup").write_text("0::/box\n")
        files = {"memory.max": "500000000", "memory.current": "100000000", "memory.stat": "inactive_file 7\nactive_file 3\n"}
        files |= {"cpu.max": "150000 100000"}
        for name, text in files.items():
            (folder / name).write_text(text)
    else:
        (proc / "self/cgroup").write_text("4:memory:/box\n5:cpu,cpuacct:/box\n")
        memory, cpu = root / "memory/box", root / "cpu,cpuacct/box"
        memory.mkdir(parents=True)
        cpu.mkdir(parents=True)
        (memory / "memory.limit_in_bytes").write_text("500000000")
        (memory / "memory.usage_in_bytes").write_text("100000000")
        (memory / "memory.stat").write_text("total_inactive_file 7\ntotal_active_file 3\n")
        (cpu / "cpu.cfs_quota_us").write_text("150000")
        (cpu / "cpu.cfs_period_us").write_text("100000")
    monkeypatch.setattr(limits, "_PROC", proc)
    monkeypatch.setattr(limits, "_CGROUP", root)
    group = limits.cgroup_memory()
    assert (group.limit, group.usage, group.reclaimable) == (500_000_000, 100_000_000, 10)
    assert limits.cpu_quota() == 1.5


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system of its own: control group ``a/b`` of versions 1 and 2."""
    for folder in ("proc/self", "cgroup/a/b", "cgroup/memory/a/b", "cgroup/cpu,cpuacct/a/b"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n3:memory:/a/b\n2:cpu,cpuacct:/a/b\n")
    monkeypatch.setattr(limits, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(limits, "_CGROUP", tmp_path / "cgroup")
    return tmp_path


def test_the_tightest_group_counts(tree: Path):
    (tree / "cgroup/a/b/memory.max").write_text("max\n")
    (tree / "cgroup/a/memory.max").write_text("1000\n")
    (tree / "cgroup/a/memory.current").write_text("600\n")
    (tree / "cgroup/a/memory.stat").write_text("anon 5\ninactive_file 100\nactive_file 50\n")
    assert limits.cgroup_memory() == limits.CgroupMemory(1000, 600, 150)
    (tree / "cgroup/a/b/cpu.max").write_text("150000 100000\n")
    assert limits.cpu_quota() == 1.5


ODD = [b"", b"\n", b"max", b"max max", b"-1", b"-1 -1", b"nan", b"1e3", b"0", b"0 0", b"9" * 5000, b"\xff\xfe", "²".encode()]
ODD += [b"1 2 3 4", b"a\x00b 5", b"inactive_file\ninactive_file x y\nactive_file 9999999999999999999999", b"\x00" * 100]


@pytest.mark.parametrize("content", ODD, ids=lambda content: repr(content[:12]))
def test_odd_limits_are_none(content: bytes, tree: Path):
    for name in ("memory.max", "memory.current", "memory.stat", "memory.limit_in_bytes", "memory.usage_in_bytes", "cpu.max"):
        for folder in ("cgroup/a/b", "cgroup/memory/a/b"):
            (tree / folder / name).write_bytes(content)
    for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"):
        (tree / "cgroup/cpu,cpuacct/a/b" / name).write_bytes(content)
    found = limits.cgroup_memory()
    assert found is None or found.free == 0
    assert limits.cpu_quota() in (None, 1.0, 0.5)
    assert limits.default_threads() >= 1
    assert limits.free_bytes() >= 0


GROUPS = [b"", b"x", b":", b"::", b"0::", b"0::/../../etc", b"0:memory", b"3:memory,/etc:/", b"3:..:/a", b"\xff:\xff:\xff"]
GROUPS += [b"0::/a\x00b", b"0::" + b"/a" * 100_000, b"3:memory:" + b"x" * 5000, b"0::/a/b:c:d\n\n\n"]


@pytest.mark.parametrize("content", GROUPS, ids=lambda content: repr(content[:16]))
def test_odd_lists_of_groups_lead_nowhere_else(content: bytes, tree: Path):
    (tree / "proc/self/cgroup").write_bytes(content)
    for controller in ("memory", "cpu", "io", "blkio"):
        for folder in limits.cgroup_folders(controller):
            assert folder.resolve().is_relative_to(tree / "cgroup")
    assert limits.cgroup_memory() is None
    assert limits.cpu_quota() is None


def test_files_that_cannot_be_read_limit_nothing(tree: Path):
    (tree / "proc/self/cgroup").unlink()
    assert limits.cgroup_folders("memory") == []
    (tree / "proc/self/cgroup").mkdir()
    assert limits.cgroup_folders("memory") == []


def test_a_buffer_is_as_large_as_fits_or_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "free_bytes", lambda: 100 << 20)
    assert limits.fitting(50 << 20, 1, "x") == 50 << 20
    assert 80 << 20 < limits.fitting(500 << 20, 1, "x") < 100 << 20
    with pytest.raises(BudgetError, match=r"x needs 212 MiB of free memory, and 100 MiB are free") as refused:
        limits.fitting(500 << 20, 200 << 20, "x")
    assert refused.value.floor_bytes > 200 << 20
