"""What counts of two measurements of one machine."""

from msgspec.structs import replace
from simulated_machines import MB, constant, profile

from estream.configurator.curve import Curve, Point
from estream.configurator.profile import Profile
from estream.configurator.renewal import differ, fastest, ratios, slower


def _with_experts(p: Profile, *points: Point) -> Profile:
    return replace(p, costs=replace(p.costs, expert_curve=Curve(points)))


def test_the_better_of_both_counts_at_every_point():
    a = _with_experts(profile(rate=2000 * MB, page_s=2e-6), Point(1, 1.0), Point(8, 4.0))
    b = _with_experts(profile(rate=1000 * MB, page_s=1e-6), Point(1, 2.0), Point(8, 3.0), Point(64, 9.0))
    for old, new in ((a, b), (b, a)):
        both = fastest(old, new)
        assert [p.value for p in both.costs.expert_curve.points] == [1.0, 3.0, 9.0]
        assert both.storage.rates == a.storage.rates
        assert both.page_s == 1e-6


def test_factors_of_interference_are_those_of_the_quieter_measurement():
    def of(slowdown: float, others: float) -> Profile:
        made = profile()
        return replace(made, storage=replace(made.storage, compute_slowdown=slowdown), others=others)

    quiet, noisy = of(1.4, 0.0), of(1.1, 0.6)
    for both in (fastest(quiet, noisy), fastest(noisy, quiet)):
        assert both.storage.compute_slowdown == 1.4
        assert not both.noisy
    assert fastest(of(1.4, 0.0), of(1.3, 0.0)).storage.compute_slowdown == 1.3


def test_profiles_differ_by_reading_and_by_computing():
    assert ratios(profile(), profile()) == (1.0, 1.0, 1.0)
    assert not differ(profile(), profile(rate=2100 * MB, seconds=1.05e-3))
    assert differ(profile(), profile(rate=3000 * MB))
    assert slower(profile(), profile(seconds=1.5e-3))
    assert slower(profile(), profile(rate=1000 * MB, seconds=1e-4))
    assert not slower(profile(), profile(rate=3000 * MB, seconds=1e-4))


def test_lanes_that_one_of_both_has_not_measured_are_kept():
    old, new = profile(), profile()
    more = replace(new, storage=replace(new.storage, rates=dict(new.storage.rates) | {8: constant(3.0)}))
    assert sorted(fastest(old, more).storage.rates) == sorted(fastest(more, old).storage.rates) == [1, 4, 8]
