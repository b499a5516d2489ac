"""Measured values as functions: a median and a spread at each measured point, straight lines between."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from estream.errors import OptionError


@dataclass(frozen=True)
class Point:
    """``value`` is the median of repeated measurements at ``x``, ``spread`` their (largest - smallest) / median."""

    x: float
    value: float
    spread: float = 0.0

    @staticmethod
    def of(x: float, samples: Iterable[float]) -> "Point":
        values = sorted(samples)
        middle = median(values)
        return Point(x, middle, (values[-1] - values[0]) / middle if middle > 0 else 0.0)


@dataclass(frozen=True)
class Curve:
    """Points in rising x; beyond the last one the last slope goes on, before the first the first value holds."""

    points: tuple[Point, ...]

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

    def to_json(self) -> list[list[float]]:
        return [[p.x, p.value, p.spread] for p in self.points]

    @staticmethod
    def from_json(data: Any, where: str) -> "Curve":
        """Rows of [x, value] or [x, value, spread] with rising x.

        Raises:
            OptionError: it is not that.

        """
        try:
            points = tuple(Point(*(float(v) for v in row)) for row in data)
        except (TypeError, ValueError) as error:
            raise OptionError(f"{where} must be a list of [x, value] rows, found {data!r}") from error
        rising = all(a.x < b.x for a, b in pairwise(points))
        if not points or not rising or any(p.value <= 0 or p.x < 0 for p in points):
            raise OptionError(f"{where} must hold at least one row, with rising x and positive values")
        return Curve(points)


def number(where: str, data: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A number that is not negative.

    Raises:
        OptionError: it is missing, or something else.

    """
    value = data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise OptionError(f"{where}: '{key}' must be a number of at least 0, found {value!r}")
    return float(value)
