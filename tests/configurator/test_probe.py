"""Measuring this machine."""

import json

import pytest
from cgroup import estream_command, memory_group
from simulated_machines import MiB

from estream.configurator import probe
from estream.devices.opening import open_within_memory
from estream.engine.options import LoadOptions
from estream.host.busy import Others
from estream.package.package import Package


def test_what_others_did_meanwhile_is_noted_and_one_round_is_enough(demo_package: Package, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "look", lambda *_: Others(0.25, 0.5))
    monkeypatch.setattr(probe, "PROBE_SECONDS", 0.0)
    options = LoadOptions()
    device, memory = open_within_memory(demo_package, options)
    found = probe.probe(demo_package, device, options, memory, {"package": "x"})
    assert found.others == 0.5
    assert found.noisy
    assert found.storage.compute_slowdown >= 1
    assert found.storage.read_slowdown >= 1
    rows = [p.x for p in found.costs.expert_curve.points]
    assert rows == [n for n in device.timed_rows if n <= found.costs.last_attention.points[-1].x]


def test_probing_stays_in_the_budget(demo_package: Package):
    with memory_group(220 * MiB) as group:
        run = group.run(estream_command("tune", demo_package.path, "--memory", "200MiB", "--force", "--json"))
        assert run.returncode == 0, run.stderr
        assert group.peak_bytes < 220 * MiB
    assert json.loads(run.stdout)["measured_now"]
