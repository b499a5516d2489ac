"""The disk below a package, and limits on reading from it."""

import json
from pathlib import Path

import pytest
from cgroup import disk_group, estream_command
from simulated_machines import MB

from estream.host import disk
from estream.host.disk import disk_limits
from estream.package.package import Package


def test_a_throttled_disk_is_seen_measured_and_planned_for(demo_package: Package):
    assert disk_limits(demo_package.path) == {}
    plan = estream_command("plan", demo_package.path, "--memory", "200MiB", "--prompt-tokens", "256", "--json")
    tune = estream_command("tune", demo_package.path, "--memory", "200MiB", "--json")
    with disk_group(demo_package.path, 40 * MB) as group:
        throttled = json.loads(group.run(tune).stdout)
        slow = json.loads(group.run(plan).stdout)["predictions"][0]
    assert throttled["key"]["disk_limits"] == {"rbps": 40 * MB}
    assert max(value for rows in throttled["storage"]["rates"].values() for _, value, _ in rows) <= 40 * MB
    assert slow["limit"] == "read"
    assert slow["ttft_s"] > slow["bytes_read"] / (40 * MB)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"8:0 rbps=100 wbps=5 riops=max wiops=max\n", {"rbps": 100}),
        (b"8:0 rbps=100 riops=7\n8:0 rbps=90\n", {"rbps": 90, "riops": 7}),
        (b"9:9 rbps=100\n", {}),
        (b"", {}),
        (b"8:0\n\n8:0 =\n8:0 =5 rbps rbps= rbps=x r=1 random=3 rbps=-1 rbps=0 rbps=\xc2\xb2\n", {}),
        (b"8:0 rbps=" + b"9" * 5000, {}),
        (b"\xff\xfe 8:0\x00 rbps=5", {}),
        (b"8:0 100", {}),
    ],
)
def test_limits_of_control_groups(content: bytes, expected: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "io.max").write_bytes(content)
    monkeypatch.setattr(disk, "cgroup_folders", lambda controller: [tmp_path] if controller == "io" else [])
    monkeypatch.setattr(disk.system, "device_number", lambda device: "8:0")
    assert disk_limits(tmp_path) == expected


@pytest.mark.parametrize(("content", "expected"), [(b"8:0 50\n", {"rbps": 50}), (b"8:0\n8:0 1 2\n8:0 x\nx\n", {})])
def test_limits_of_version_1(content: bytes, expected: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "blkio.throttle.read_bps_device").write_bytes(content)
    monkeypatch.setattr(disk, "cgroup_folders", lambda controller: [tmp_path] if controller == "blkio" else [])
    monkeypatch.setattr(disk.system, "device_number", lambda device: "8:0")
    assert disk_limits(tmp_path) == expected
