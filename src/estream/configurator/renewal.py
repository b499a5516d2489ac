"""Two profiles of one machine: how they differ, and what of both counts. Other work only ever makes a figure slower."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from estream.configurator.compute_probe import square_part
from estream.configurator.costs import FULL, MeasuredCosts
from estream.configurator.curve import Curve, Point
from estream.configurator.profile import Profile, Storage

#: Figures that differ by less are the same.
SAME = 0.1

K = TypeVar("K", int, str)
Better = Callable[[Point, Point], Point]


def ratios(old: Profile, new: Profile) -> tuple[float, ...]:
    """How much longer reading, experts and attention take by ``new``: means over what both have measured."""
    a, b = _measured(old), _measured(new)
    common = old.storage.rates.keys() & new.storage.rates.keys()
    return (
        1 / _ratio((old.storage.rates[n], new.storage.rates[n]) for n in common),
        _ratio([(a.expert_curve, b.expert_curve)]),
        _ratio((a.attention_curves[k], b.attention_curves[k]) for k in a.attention_curves.keys() & b.attention_curves.keys()),
    )


def differ(old: Profile, new: Profile) -> bool:
    """Whether one of these figures changed by more than noise does."""
    return max(max(r, 1 / r) for r in ratios(old, new)) > 1 + SAME


def slower(old: Profile, new: Profile) -> bool:
    """Whether one of these figures is worse in ``new`` by more than noise makes it."""
    return max(ratios(old, new)) > 1 + SAME


def fastest(old: Profile, new: Profile) -> Profile:
    """The better of both at every point. Factors of interference, which have no better, are those of the quieter profile."""
    a, b = _measured(old), _measured(new)
    attention = _each(a.attention_curves, b.attention_curves, _sooner)
    quiet = new if (new.others or 0.0) <= max(old.others or 0.0, SAME / 10) else old
    storage = Storage(
        _each(old.storage.rates, new.storage.rates, _more),
        _join(old.storage.embedding, new.storage.embedding, _sooner),
        quiet.storage.compute_slowdown,
        quiet.storage.read_slowdown,
    )
    costs = replace(
        b,
        attention_curves=attention,
        last_attention=_join(a.last_attention, b.last_attention, _sooner),
        attention_square=square_part(attention[FULL]),
        router_curve=_join(a.router_curve, b.router_curve, _sooner),
        expert_curve=_join(a.expert_curve, b.expert_curve, _sooner),
        head_curve=_join(a.head_curve, b.head_curve, _sooner),
        shared_curve=_join(a.shared_curve, b.shared_curve, _sooner) if a.shared_curve and b.shared_curve else b.shared_curve,
    )
    return replace(new, storage=storage, costs=costs, page_s=min(old.page_s, new.page_s), others=quiet.others)


def _measured(profile: Profile) -> MeasuredCosts:
    assert isinstance(profile.costs, MeasuredCosts), "profiles of this machine hold tables"
    return profile.costs


def _ratio(pairs: Iterable[tuple[Curve, Curve]]) -> float:
    """The geometric mean of new over old values at the points that both curves have; 1 where there are none."""
    logs = []
    for old, new in pairs:
        known = {p.x: p.value for p in old.points}
        logs += [math.log(p.value / known[p.x]) for p in new.points if p.x in known]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def _sooner(a: Point, b: Point) -> Point:
    return a if a.value < b.value else b


def _more(a: Point, b: Point) -> Point:
    return a if a.value > b.value else b


def _join(old: Curve, new: Curve, better: Better) -> Curve:
    points = {p.x: p for p in old.points}
    points |= {p.x: better(points[p.x], p) if p.x in points else p for p in new.points}
    return Curve.of(points.values())


def _each(old: Mapping[K, Curve], new: Mapping[K, Curve], better: Better) -> dict[K, Curve]:
    both = {k: _join(old[k], new[k], better) for k in old.keys() & new.keys()}
    every = {**old, **new, **both}
    return {k: every[k] for k in sorted(every)}
