"""``estream doctor``."""

import json
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cgroup import cpu_group, estream_command, memory_group
from command import run

from estream import _native
from estream.host.sizes import MiB


def test_doctor_sees_limits(tmp_path: Path):
    with memory_group(500 * MiB) as group:
        facts = json.loads(group.run(estream_command("doctor", "--folder", tmp_path, "--json")).stdout)
    assert facts["memory"]["cgroup_limit"] == 500 * MiB
    assert facts["memory"]["default_budget"] < 500 * MiB
    with cpu_group(1.5) as group:
        facts = json.loads(group.run(estream_command("doctor", "--folder", tmp_path, "--json")).stdout)
    assert facts["cpu"]["quota"] == 1.5
    assert facts["cpu"]["threads"] == 1


def test_doctor(tmp_path: Path):
    facts = json.loads(run("doctor", "--folder", tmp_path, "--json").stdout)
    assert facts["kernels"]["chosen"] in facts["kernels"]["available"]
    assert facts["storage"]["read_bytes_per_s"]["4"] > 0
    assert list(tmp_path.iterdir()) == []
    assert "kernels" in run("doctor", "--folder", tmp_path).stdout


@pytest.mark.parametrize("mib", [100, 150, 300])
def test_a_small_group_is_probed_with_less(mib: int, tmp_path: Path):
    with memory_group(mib * MiB) as group:
        result = group.run(estream_command("doctor", "--folder", tmp_path, "--json"))
    assert result.returncode == 0, result.stderr
    storage = json.loads(result.stdout)["storage"]
    assert storage["not_probed"] or 0 < storage["probe_bytes"] < mib * MiB // 2
    assert list(tmp_path.iterdir()) == []


def test_a_kill_leaves_no_file(tmp_path: Path):
    process = subprocess.Popen(estream_command("doctor", "--folder", tmp_path), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not any("tmp" in os.readlink(link) for link in _open_files(process.pid, tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert list(tmp_path.iterdir()) == []


def _open_files(process: int, folder: Path) -> list[Path]:
    found = []
    for link in Path(f"/proc/{process}/fd").glob("*"):
        with suppress(OSError):
            if os.readlink(link).startswith(str(folder)):
                found.append(link)
    return found


def test_where_nothing_can_be_written_all_else_is_said():
    facts = json.loads(run("doctor", "--folder", "/proc", "--json").stdout)
    assert facts["storage"]["not_probed"]
    assert facts["memory"]["available"] > 0
    assert "not probed: " in run("doctor", "--folder", "/proc").stdout


def test_memory_is_not_taken_for_a_disk():
    if not _native.memory_backed("/dev/shm"):
        pytest.skip("/dev/shm is no tmpfs here")
    result = run("doctor", "--folder", "/dev/shm")
    assert "memory-backed" in result.stdout
    assert "direct I/O" not in result.stdout
