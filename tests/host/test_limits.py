"""What the machine and its control groups limit is seen, and obeyed."""

import json
import subprocess
from pathlib import Path

import pytest
from cgroup import cpu_group, estream_command

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
