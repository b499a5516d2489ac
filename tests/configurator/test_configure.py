"""Where a model's configuration comes from."""

import logging
from pathlib import Path

import pytest
from simulated_machines import MiB

import estream
from estream.configurator import configure
from estream.configurator.profile import Profile
from estream.host import limits
from estream.package.package import Package


def test_a_model_uses_the_profile_and_says_so(demo_package: Package, tuned: Profile):
    budget = limits.resident_bytes() + 200 * MiB
    plan = estream.plan(demo_package.path, memory=budget)
    with estream.load(demo_package.path, memory=budget) as model:
        config = model.prefill([1, 2, 3]).stats.config
    for name, value in plan.configuration.to_json().items():
        assert config[name] == pytest.approx(value) or name in ("ring_bytes", "pinned_bytes")


def test_a_large_package_is_measured_at_its_first_load(demo_package: Package, monkeypatch, tmp_path: Path, caplog):
    monkeypatch.setenv("ESTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr(configure, "PROBED_BYTES", 0)
    caplog.set_level(logging.INFO, "estream")
    for _ in range(2):
        with estream.load(demo_package.path):
            pass
    assert caplog.text.count("measuring this machine") == 1
    assert len(list(tmp_path.glob("*.json"))) == 1
