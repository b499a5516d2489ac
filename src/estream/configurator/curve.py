"""Measured values as functions: the quietest quarter and the spread at each measured point, straight lines between."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from estream.schema import NotNegative, Positive, Record, SchemaError, from_plain, shown


def quietest(samples: Iterable[float], *, highest: bool = False) -> float:
    """The value that a quarter of the samples reach; the best of less than four.

    Whatever else a machine does only ever makes a sample slower. Of many samples the very best would be a lucky one.

    Args:
        samples: repeated measurements, at least one.
        highest: they are speeds, of which the highest are the quiet ones, and not times.

    """
    ordered = sorted(samples, reverse=highest)
    return ordered[len(ordered) // 4]


class Point(Record, frozen=True, array_like=True):
    """``value`` is the quietest of repeated measurements at ``x``, ``spread`` their (largest - smallest) / ``value``."""

    x: NotNegative
    value: Positive
    spread: NotNegative = 0.0

    @staticmethod
    def of(x: float, samples: Iterable[float], *, highest: bool = False) -> "Point":
        """A point of samples as :func:`quietest` takes them."""
        values = list(samples)
        value = quietest(values, highest=highest)
        return Point(x, value, (max(values) - min(values)) / value if value > 0 else 0.0)


class Curve:
    """Points in rising x; beyond the last one the last slope goes on, before the first the first value holds."""

    __slots__ = ("points",)

    def __init__(self, points: tuple[Point, ...]) -> None:
        self.points = points

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and other.points == self.points

    def __hash__(self) -> int:
        return hash(self.points)

    @staticmethod
    def of(points: Iterable[Point]) -> "Curve":
        return Curve(tuple(sorted(points, key=lambda p: p.x)))

    def __call__(self, x: float) -> float:
        points = self.points
        if x <= points[0].x or len(points) == 1:
            return points[0].value
        right = min(bisect_left(points, x, key=lambda p: p.x), len(points) - 1)
        a, b = points[right - 1], points[right]
        return max(0.0, a.value + (b.value - a.value) * (x - a.x) / (b.x - a.x))

    @property
    def spread(self) -> float:
        return max(p.spread for p in self.points)


def rows_of(value: Any) -> list[Any]:
    """The rows of [x, value, spread] that stand for a curve in JSON."""
    if not isinstance(value, Curve):
        raise NotImplementedError(type(value))
    return [[p.x, p.value, p.spread] for p in value.points]


def curve_of(kind: Any, data: Any) -> Curve:
    """A curve of rows [x, value] or [x, value, spread] with rising x.

    Raises:
        SchemaError: it is not that.

    """
    if kind is not Curve:
        raise NotImplementedError(kind)
    points = from_plain(data, tuple[Point, ...])
    if not points or not all(a.x < b.x for a, b in pairwise(points)):
        raise SchemaError(f"it must have rows of [x, value] with rising x, at least one, found {shown(data)}")
    return Curve(points)
