"""Estimates that turn out wrong, and when they are made."""

from collections import Counter
from pathlib import Path

import pytest
from simulated_machines import memory, profile

from estream.configurator import store
from estream.configurator.configure import ChosenConfiguration
from estream.configurator.estimates import SweepEstimates
from estream.configurator.simulate import Simulator
from estream.engine.batch import BatchShape
from estream.engine.options import Configuration
from estream.host.busy import Others

SHAPE = BatchShape.of_prompt(64)


class CountingSimulator(Simulator):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__(memory(), profile())
        self.asked = Counter[BatchShape]()

    def estimate(self, configuration, shape, *, repeated=False, resident=frozenset()):
        self.asked[shape] += 1
        return super().estimate(configuration, shape, repeated=repeated, resident=resident)


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ESTREAM_CACHE", str(tmp_path))


def _estimates(simulator: Simulator | None) -> SweepEstimates:
    return SweepEstimates(ChosenConfiguration(Configuration(), profile(), None, {}, simulator), Path())


def test_sweeps_that_deviate_are_remembered_for_the_loads_to_come(monkeypatch: pytest.MonkeyPatch):
    simulator = Simulator(memory(), profile(page_s=0.01))
    right, idle = simulator.estimate(Configuration(), SHAPE).ttft_s, Others(0.0, 0.0)
    for load in range(1, 3):
        estimates = _estimates(simulator)
        for others in (Others(0.5, 0.0), idle, idle):
            monkeypatch.setattr("estream.configurator.estimates.between", lambda *_, seen=others: seen)
            estimates.begin()
            estimates.of_sweep(SHAPE, 2 * right, frozenset())
        estimates.judge()
        run = store.find_upkeep({}).run
        assert run is not None
        # What was slow beside others says nothing.
        assert (run.slower, run.sweeps, run.loads) == (True, 2 * load, load)
    estimates.of_sweep(SHAPE, 1.1 * right, frozenset())
    estimates.judge()
    assert store.find_upkeep({}).run is None


def test_without_deviations_nothing_is_written(tmp_path: Path):
    simulator = Simulator(memory(), profile(page_s=0.01))
    estimates = _estimates(simulator)
    estimates.of_sweep(SHAPE, simulator.estimate(Configuration(), SHAPE).ttft_s, frozenset())
    estimates.judge()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_simulated_until_somebody_asks_and_then_once():
    simulator = CountingSimulator()
    estimates = _estimates(simulator)
    estimate = estimates.of_sweep(SHAPE, 1.5, frozenset())
    assert not simulator.asked
    assert estimate() == estimate()
    estimates.of_sweep(SHAPE, 1.5, frozenset())()
    assert simulator.asked[SHAPE] == 1


def test_what_is_remembered_is_bounded():
    simulator = CountingSimulator()
    estimates = _estimates(simulator)
    for tokens in range(1, 80):
        estimates.of_sweep(BatchShape.of_prompt(tokens), 1.5, frozenset())
    estimates.judge()
    assert len(simulator.asked) == 16
    for tokens in range(1, 80):
        estimates.of_sweep(BatchShape.of_prompt(tokens), 1.5, frozenset())()
    estimates.of_sweep(BatchShape.of_prompt(1), 1.5, frozenset())()
    assert simulator.asked[BatchShape.of_prompt(1)] == 2


def test_short_sweeps_and_machines_that_were_not_measured_have_no_estimate():
    simulator = CountingSimulator()
    assert _estimates(simulator).of_sweep(SHAPE, 0.5, frozenset())() is None
    assert _estimates(None).of_sweep(SHAPE, 5.0, frozenset())() is None
    assert not simulator.asked
