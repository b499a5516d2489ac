"""Measured curves."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estream.configurator.curve import Curve, Point, curve_of, quietest
from estream.schema import SchemaError, from_plain


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 10**6)), min_size=1, unique_by=lambda p: p[0]))
def test_a_curve_goes_through_its_points_and_stays_between_them(rows):
    curve = Curve.of(Point(x, y) for x, y in rows)
    for x, y in rows:
        assert curve(x) == pytest.approx(y)
    for a, b in pairwise(curve.points):
        middle = curve((a.x + b.x) / 2)
        assert min(a.value, b.value) - 1e-6 <= middle <= max(a.value, b.value) + 1e-6


def test_the_quietest_quarter_and_the_spread_of_samples_are_kept():
    assert Point.of(4, [3.0, 1.0, 2.0]) == Point(4, 1.0, 2.0)
    assert Point.of(4, [3.0, 1.0, 2.0], highest=True) == Point(4, 3.0, 2 / 3)
    assert quietest(range(100)) == 25
    assert quietest(range(100), highest=True) == 74


@given(st.lists(st.floats(1, 2), min_size=8, max_size=40), st.integers(1, 20))
def test_samples_of_a_busy_moment_move_a_figure_little(quiet, slow):
    """As long as some three in ten samples are quiet, the figure is one of theirs."""
    noisy = quiet + [s * 50 for s in (quiet * 2)[: min(slow, 2 * len(quiet))]]
    assert quietest(noisy) <= max(quiet)


@pytest.mark.parametrize("rows", [[], [[1]], [[2, 1.0], [1, 1.0]], [[1, -1.0]], "x", [["a", 1]]])
def test_a_curve_without_sense_is_refused(rows):
    with pytest.raises(SchemaError, match="must"):
        from_plain(rows, Curve, curve_of)
