"""Measuring this machine."""

import json

from cgroup import estream_command, memory_group
from simulated_machines import MiB

from estream.package.package import Package


def test_probing_stays_in_the_budget(demo_package: Package):
    with memory_group(220 * MiB) as group:
        run = group.run(estream_command("tune", demo_package.path, "--memory", "200MiB", "--force", "--json"))
        assert run.returncode == 0, run.stderr
        assert group.peak_bytes < 220 * MiB
    assert json.loads(run.stdout)["measured_now"]
