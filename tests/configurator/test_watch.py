"""Predictions that turn out wrong."""

from simulated_machines import profile, setting

from estream.configurator import store
from estream.configurator.configure import Configured
from estream.configurator.profile import Profile
from estream.configurator.simulate import Simulator
from estream.configurator.simulated import Workload
from estream.configurator.watch import PredictionWatch
from estream.engine.options import Configuration
from estream.package.package import Package


def test_two_wrong_predictions_have_the_machine_measured_again(demo_package: Package, tuned: Profile, caplog):
    store.keep(tuned)
    configured = Configured(Configuration(), profile(), None, tuned.key, Simulator(setting(), profile()))
    watch = PredictionWatch(configured)
    right = watch.observe(Workload.prompt(64), 1.5, repeated=False)
    assert right is not None
    for _ in range(3):
        watch.observe(Workload.prompt(64), max(1.0, right), repeated=False)
    assert store.find(tuned.key) is not None
    watch.observe(Workload.prompt(64), 1.0 + 2 * right, repeated=False)
    assert store.find(tuned.key) is not None
    watch.observe(Workload.prompt(64), 1.0 + 2 * right, repeated=False)
    assert store.find(tuned.key) is None
    assert "measures this machine again" in caplog.text
    store.keep(tuned)
