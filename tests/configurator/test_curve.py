"""Measured curves."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estream.configurator.curve import Curve, Point
from estream.errors import OptionError


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 10**6)), min_size=1, unique_by=lambda p: p[0]))
def test_a_curve_goes_through_its_points_and_stays_between_them(rows):
    curve = Curve.of(Point(x, y) for x, y in rows)
    for x, y in rows:
        assert curve(x) == pytest.approx(y)
    for a, b in pairwise(curve.points):
        middle = curve((a.x + b.x) / 2)
        assert min(a.value, b.value) - 1e-6 <= middle <= max(a.value, b.value) + 1e-6


def test_the_median_and_the_spread_of_samples_are_kept():
    point = Point.of(4, [3.0, 1.0, 2.0])
    assert (point.value, point.spread) == (2.0, 1.0)


@pytest.mark.parametrize("rows", [[], [[1]], [[2, 1.0], [1, 1.0]], [[1, -1.0]], "x", [["a", 1]]])
def test_a_curve_without_sense_is_refused(rows):
    with pytest.raises(OptionError, match="storage"):
        Curve.from_json(rows, "p.json: 'storage'")
