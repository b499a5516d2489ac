"""When a machine is measured: a clock, a machine and its neighbours that are made up, and the store as it is."""

import os
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from simulated_machines import MB, memory, profile

from estream.configurator import store
from estream.configurator.configure import ChosenConfiguration
from estream.configurator.estimates import SweepEstimates
from estream.configurator.keeper import Keeper
from estream.configurator.profile import Profile
from estream.configurator.simulate import Simulator
from estream.configurator.upkeep import DAY, HOUR, WAITS
from estream.engine.batch import BatchShape
from estream.engine.options import Configuration
from estream.errors import BudgetError
from estream.host.busy import Others

KEY = {"package": "kept"}
SHAPE = BatchShape.of_prompt(64)


class TwoSeconds(Simulator):
    """Estimates each sweep at as long."""

    def estimate(self, configuration, shape, *, repeated=False, resident=frozenset()):
        return SimpleNamespace(ttft_s=2.0)


@dataclass
class World:
    """A machine that is ``slow`` times as slow as its probes were made for, and ``others`` take a share of it."""

    clock: float = 1e9
    others: float = 0.0
    slow: float = 1.0
    measured: list[float] = field(default_factory=list)
    looks: int = 0

    def measure(self) -> Profile:
        self.measured.append(self.clock)
        factor = self.slow * (1 + self.others)
        when = datetime.fromtimestamp(self.clock, UTC).isoformat(timespec="seconds")
        return replace(profile(2000 * MB / factor, 1e-3 * factor), others=self.others, measured_at=when, key=KEY)

    def look(self) -> Others:
        self.looks += 1
        return Others(self.others, 0.0)

    def keeper(self) -> Keeper:
        return Keeper(KEY, "pkg", self.measure, self.look, lambda: self.clock)

    def load(self, sweeps: int = 0, ratio: float = 1.0) -> Profile:
        """Load a model, sweep with it in ``ratio`` times the estimated time, and close it."""
        keeper = self.keeper()
        found, now = keeper.profile()
        found = found if now else keeper.upkept(found)
        chosen = ChosenConfiguration(Configuration(), found, None, KEY, TwoSeconds(memory(), found))
        estimates = SweepEstimates(chosen, Path(), lambda: self.clock)
        busy = Others(self.others, 0.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("estream.configurator.estimates.between", lambda *_: busy)
            for _ in range(sweeps):
                estimates.begin()
                estimates.of_sweep(SHAPE, 2.0 * ratio, frozenset())
        estimates.judge()
        return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.setenv("ESTREAM_CACHE", str(tmp_path / "not there yet/cache"))
    return World()


def test_ten_loads_beside_a_neighbour_measure_once(world: World):
    world.others = 0.5
    for _ in range(10):
        assert world.load(sweeps=5, ratio=1.8).noisy
        world.clock += 30
    assert len(world.measured) == 1
    assert world.looks == 0


def test_a_neighbour_who_stays_for_weeks_costs_a_few_short_looks(world: World):
    world.others = 0.5
    for _ in range(24 * 30):
        world.load(sweeps=2, ratio=1.8)
        world.clock += HOUR
    assert len(world.measured) == 1
    assert world.looks < 40


def test_what_was_measured_in_noise_is_measured_once_more_on_an_idle_machine(world: World):
    world.others = 0.5
    noisy = world.load()
    world.others, world.clock = 0.0, world.clock + HOUR
    quiet = world.load()
    assert not quiet.noisy
    assert quiet.storage.rates[4].points[0].value > noisy.storage.rates[4].points[0].value
    for _ in range(20):
        world.clock += DAY
        assert world.load(sweeps=8) == quiet
    assert len(world.measured) == 2


def test_sweeps_that_are_slow_for_long_on_an_idle_machine_have_it_measured_once(world: World):
    world.load()
    world.clock += DAY
    for loads in range(1, 10):
        world.load(sweeps=4, ratio=1.6)
        world.clock += 60
        assert len(world.measured) == (1 if loads <= 3 else 2)


def test_a_few_slow_sweeps_or_those_of_a_single_load_are_no_reason(world: World):
    world.load()
    world.clock += DAY
    world.load(sweeps=16, ratio=1.6)
    for _ in range(12):
        world.load(sweeps=3, ratio=1.6)
        world.load(sweeps=1)
    assert len(world.measured) == 1


def test_the_wait_grows_where_measuring_changes_little(world: World):
    world.load()
    for _ in range(4 * 60):
        world.clock += 6 * HOUR
        world.load(sweeps=3, ratio=1.6)
    gaps = [b - a for a, b in zip(world.measured, world.measured[1:], strict=False)]
    assert gaps == sorted(gaps)
    assert all(gap >= wait for gap, wait in zip(gaps, WAITS, strict=False))
    assert len(world.measured) <= 7


def test_a_machine_that_became_faster_counts_at_once_and_one_that_became_slower_when_measurements_agree(world: World):
    first = world.load()
    world.slow = 0.5
    for _ in range(4):
        world.clock += HOUR
        faster = world.load(sweeps=4, ratio=0.5)
    rate = lambda p: p.storage.rates[4].points[0].value  # noqa: E731
    assert rate(faster) == 2 * rate(first)
    world.slow, seen = 2.0, []
    while len(world.measured) < 5:
        world.clock += HOUR
        seen.append(rate(world.load(sweeps=4, ratio=4.0)))
    assert set(seen[:-1]) == {rate(faster)}
    assert seen[-1] == rate(first) / 2


def test_one_slow_measurement_changes_nothing(world: World):
    first = world.load()
    world.slow, world.clock = 3.0, world.clock + HOUR
    for _ in range(4):
        world.load(sweeps=4, ratio=3.0)
    assert len(world.measured) == 2
    assert store.find(KEY).storage == first.storage


def test_two_loads_at_once_measure_once(world: World):
    measure, inside = world.measure, threading.Event()

    def slowly() -> Profile:
        inside.set()
        threading.Event().wait(0.3)
        return measure()

    world.measure = slowly
    results = []
    threads = [threading.Thread(target=lambda: results.append(world.keeper().profile()[1])) for _ in range(2)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False, True]


def test_a_forced_measurement_replaces_on_an_idle_machine_and_else_the_better_counts(world: World):
    first = world.load()
    world.slow = 1.5
    assert world.keeper().anew().storage != first.storage
    world.slow = 1.0
    quiet = world.keeper().anew()
    world.others = 0.9
    assert world.keeper().anew().storage == quiet.storage == first.storage


def test_without_a_folder_a_process_measures_once(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESTREAM_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(store, "_unkept", {})
    world.others = 0.5
    for _ in range(3):
        world.load(sweeps=4, ratio=2.0)
        world.clock, world.others = world.clock + DAY, 0.0
    assert len(world.measured) == 1


def test_a_profile_in_a_read_only_folder_is_used_as_it_is(world: World, monkeypatch: pytest.MonkeyPatch):
    world.others = 0.5
    noisy = world.load()
    world.others = 0.0
    monkeypatch.setattr(store, "write_whole", lambda *_: OSError(30, "Read-only file system"))
    for _ in range(3):
        world.clock += DAY
        assert world.load(sweeps=4, ratio=2.0) == noisy
    assert (len(world.measured), world.looks) == (1, 0)


def test_a_budget_too_small_for_measuring_again_is_no_error(world: World):
    world.others = 0.5
    noisy = world.load()
    world.others, world.clock = 0.0, world.clock + HOUR

    def refuse() -> Profile:
        raise BudgetError("no room", 1)

    world.measure = refuse
    assert world.load() == noisy
    assert store.find(KEY) == noisy


def test_a_clock_that_was_set_back_is_no_reason_to_measure_at_every_load(world: World):
    world.others = 0.5
    world.load()
    world.others, world.clock = 0.0, world.clock - 400 * DAY
    for _ in range(5):
        world.load(sweeps=4, ratio=2.0)
    assert len(world.measured) == 2


def test_a_damaged_upkeep_file_is_as_none(world: World):
    world.load()
    path = store._upkeep_path(KEY)
    for text in ("{", "[]", '{"unchanged": -1}', '{"run": 3}'):
        path.write_text(text)
        assert world.load() == store.find(KEY)
    assert len(world.measured) == 1
    assert os.listdir(path.parent)
