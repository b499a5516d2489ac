"""``estream doctor``."""

import json
from pathlib import Path

from cgroup import cpu_group, estream_command, memory_group
from command import run

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
