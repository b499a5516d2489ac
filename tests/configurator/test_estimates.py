"""Estimates that turn out wrong, and when they are made."""

from collections import Counter

from simulated_machines import memory, profile

from estream.configurator import store
from estream.configurator.configure import ChosenConfiguration
from estream.configurator.estimates import SweepEstimates
from estream.configurator.profile import Profile
from estream.configurator.simulate import Simulator
from estream.engine.batch import BatchShape
from estream.engine.options import Configuration
from estream.package.package import Package

SHAPE = BatchShape.of_prompt(64)


class CountingSimulator(Simulator):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__(memory(), profile())
        self.asked = Counter[BatchShape]()

    def estimate(self, configuration, shape, *, repeated=False):
        self.asked[shape] += 1
        return super().estimate(configuration, shape, repeated=repeated)


def _chosen(simulator: Simulator | None, key: dict) -> ChosenConfiguration:
    return ChosenConfiguration(Configuration(), profile(), None, key, simulator)


def test_two_wrong_estimates_have_the_machine_measured_again(demo_package: Package, tuned: Profile, caplog):
    store.keep(tuned)
    estimates = SweepEstimates(_chosen(Simulator(memory(), profile()), tuned.key))
    right = estimates.of_sweep(SHAPE, 1.5, repeated=False)()
    assert right is not None
    for _ in range(3):
        estimates.of_sweep(SHAPE, max(1.0, right), repeated=False)
    estimates.judge()
    assert store.find(tuned.key) is not None
    estimates.of_sweep(SHAPE, 1.0 + 2 * right, repeated=False)
    estimates.judge()
    assert store.find(tuned.key) is not None
    estimates.of_sweep(SHAPE, 1.0 + 2 * right, repeated=False)
    estimates.judge()
    assert store.find(tuned.key) is None
    assert "measures this machine again" in caplog.text
    store.keep(tuned)


def test_nothing_is_simulated_until_somebody_asks_and_then_once():
    simulator = CountingSimulator()
    estimates = SweepEstimates(_chosen(simulator, {}))
    estimate = estimates.of_sweep(SHAPE, 1.5, repeated=False)
    assert not simulator.asked
    assert estimate() == estimate()
    estimates.of_sweep(SHAPE, 1.5, repeated=False)()
    assert simulator.asked[SHAPE] == 1


def test_what_is_remembered_is_bounded():
    simulator = CountingSimulator()
    estimates = SweepEstimates(_chosen(simulator, {}))
    for tokens in range(1, 80):
        estimates.of_sweep(BatchShape.of_prompt(tokens), 1.5, repeated=False)
    estimates.judge()
    assert len(simulator.asked) == 16
    for tokens in range(1, 80):
        estimates.of_sweep(BatchShape.of_prompt(tokens), 1.5, repeated=False)()
    estimates.of_sweep(BatchShape.of_prompt(1), 1.5, repeated=False)()
    assert simulator.asked[BatchShape.of_prompt(1)] == 2


def test_short_sweeps_and_machines_that_were_not_measured_have_no_estimate():
    simulator = CountingSimulator()
    assert SweepEstimates(_chosen(simulator, {})).of_sweep(SHAPE, 0.5, repeated=False)() is None
    assert SweepEstimates(_chosen(None, {})).of_sweep(SHAPE, 5.0, repeated=False)() is None
    assert not simulator.asked
