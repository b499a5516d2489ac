"""The disk below a package, and limits on reading from it."""

import json

from cgroup import disk_group, estream_command
from simulated_machines import MB

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
