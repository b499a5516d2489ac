"""Where a model's configuration comes from."""

import logging
from pathlib import Path

import pytest
from loaded import configuration_of, pinned_bytes_of

import estream
from estream.api.model import Model
from estream.api.plan import planner
from estream.configurator import configure
from estream.configurator.profile import Profile
from estream.engine.batch import BatchShape
from estream.engine.memory import divide_arena
from estream.engine.options import LoadOptions
from estream.host import limits
from estream.host.sizes import KiB, MiB
from estream.package.package import Package

GIVEN = [{}, {"pinned_bytes": 0}, {"ring_bytes": 3 * MiB, "pinned_bytes": 4 * MiB}, {"lanes": 2, "request_bytes": 64 * KiB}]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_a_model_runs_as_was_planned_and_says_so(demo_package: Package, tuned: Profile, given: dict, monkeypatch):
    # A process that grew between planning and loading would have less left for the arena.
    process = limits.resident_bytes()
    monkeypatch.setattr(limits, "resident_bytes", lambda: process)
    budget, ids = process + 200 * MiB, list(range(1, 100))
    plan = planner(demo_package.path, LoadOptions(budget, **given)).plan(budget)
    with Model(demo_package, LoadOptions(budget, **given)) as model:
        config = model.prefill(ids).stats.config
        assert configuration_of(model) == plan.configuration
        assert pinned_bytes_of(model) == plan.pinned_bytes
    arena, activations = (
        plan.memory.plan_arena(plan.configuration),
        plan.memory.plan_arrays(BatchShape.of_prompt(len(ids))).bytes,
    )
    layout = divide_arena(arena, activations)
    # Of the ring it is said what this sweep had.
    assert plan.configuration.to_json() | {"ring_bytes": layout.ring_bytes} | {"pinned_pages": plan.pinned_pages} == {
        name: config[name] for name in [*plan.configuration.to_json(), "pinned_pages"]
    }
    assert given.items() <= plan.configuration.to_json().items()


def test_a_large_package_is_measured_at_its_first_load(demo_package: Package, monkeypatch, tmp_path: Path, caplog):
    monkeypatch.setenv("ESTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr(configure, "PROBED_BYTES", 0)
    caplog.set_level(logging.INFO, "estream")
    for _ in range(2):
        # Whether others were busy meanwhile depends on this machine; within the hour it makes no difference.
        with estream.load(demo_package.path):
            pass
    assert caplog.text.count("measuring this machine") == 1
    assert len(list(tmp_path.glob("profile-*.json"))) == 1
