"""When this machine is measured again, and what counts then: a policy of plain values, without clock, disk or probes."""

from datetime import datetime
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from estream.configurator.curve import rows_of
from estream.configurator.profile import Profile, made
from estream.configurator.renewal import differ, fastest, slower
from estream.schema import CountOrZero, Record, SchemaError, from_plain, parse, to_plain

HOUR, DAY = 3600.0, 86400.0
#: Waits after a measurement, by how many in a row changed little; the last one goes on.
WAITS = (HOUR, DAY, DAY, 7 * DAY, 28 * DAY)
#: Waits after a look that found the machine busy, by how many in a row did.
LOOK_WAITS = (600.0, HOUR, 6 * HOUR, DAY)
#: A run of deviations lasts long from so many sweeps in so many loads on.
LONG_SWEEPS, LONG_LOADS = 8, 3
#: So many measurements of an idle machine in a row must agree that it has become slower.
AGREEING = 3
#: An estimate that is further off than this is wrong.
WRONG = 0.25
#: Nothing is counted beyond this.
_MOST = 1000

#: Seconds since 1970, which float32's range holds.
Moment = Annotated[float, Meta(ge=0, le=1e12)]


class Run(Record, frozen=True):
    """Sweeps in a row that were all slower than estimated, or all faster: how many, in how many loads, from when to when."""

    slower: bool
    sweeps: CountOrZero
    loads: CountOrZero
    since: Moment
    until: Moment

    @property
    def long(self) -> bool:
        return self.sweeps >= LONG_SWEEPS and self.loads >= LONG_LOADS


class Upkeep(Record, frozen=True):
    """What is remembered beside a profile.

    ``measured`` is when, and ``unchanged`` how many measurements in a row changed little; ``looked`` is when the machine was
    last found busy, ``put_off`` how many looks in a row found it so. ``slower`` is the best of the last ``agreeing``
    measurements of an idle machine that agree that it is slower than its profile says.
    """

    run: Run | None = None
    measured: Moment = 0.0
    unchanged: CountOrZero = 0
    looked: Moment = 0.0
    put_off: CountOrZero = 0
    slower: Profile | None = None
    agreeing: CountOrZero = 0

    def to_json(self) -> dict[str, object]:
        """Plain values for a file."""
        values: dict[str, object] = to_plain(self, rows_of)
        if self.slower is not None:
            values["slower"] = {k: v for k, v in self.slower.to_json().items() if k not in ("format", "version")}
        return values

    @staticmethod
    def of(text: bytes) -> "Upkeep":
        """Read what :meth:`to_json` made. Raises SchemaError."""
        found = from_plain(parse(text), Upkeep, made)
        if found.slower is not None and found.slower.kind != "measured":
            raise SchemaError("'slower' must be a measured profile")
        return found


def noted(upkeep: Upkeep, ratio: float, busy: bool, new_load: bool, now: float) -> Upkeep:
    """A sweep has taken ``ratio`` times what was estimated. ``new_load``: it is this load's first one that deviates.

    A sweep that was slow while others kept the machine busy says nothing; one as estimated ends a run.
    """
    if 1 - WRONG <= 1 / ratio <= 1 + WRONG:
        return upkeep if upkeep.run is None else replace(upkeep, run=None)
    is_slower = ratio > 1
    if is_slower and busy:
        return upkeep
    run = upkeep.run
    if run is None or run.slower != is_slower:
        return replace(upkeep, run=Run(is_slower, 1, 1, now, now))
    if run.sweeps >= _MOST and not new_load:
        return upkeep
    return replace(
        upkeep,
        run=Run(is_slower, min(run.sweeps + 1, _MOST), min(run.loads + new_load, _MOST), run.since, now),
    )


def due(profile: Profile, upkeep: Upkeep, now: float) -> bool:
    """Whether there is a reason to measure again, and the last measurement or look is long enough ago."""
    if not profile.noisy and not (upkeep.run is not None and upkeep.run.long):
        return False
    measured = max(upkeep.measured, _moment(profile.measured_at))
    if 0 <= now - measured < WAITS[min(upkeep.unchanged, len(WAITS) - 1)]:
        return False
    wait = LOOK_WAITS[min(max(upkeep.put_off, 1), len(LOOK_WAITS)) - 1]
    return not upkeep.put_off or not 0 <= now - upkeep.looked < wait


def put_off(upkeep: Upkeep, now: float) -> Upkeep:
    """The machine was found busy."""
    return replace(upkeep, looked=now, put_off=min(upkeep.put_off + 1, _MOST))


def renewed(profile: Profile, upkeep: Upkeep, fresh: Profile, now: float) -> tuple[Profile, Upkeep]:
    """The profile that counts after a new measurement, and what is remembered.

    It is the better of both at every point. Only where several measurements of an idle machine in a row agree that it is slower
    than that, their best replaces it.
    """
    best = fastest(profile, fresh)
    candidate, agreeing = None, 0
    if slower(best, fresh):
        candidate, agreeing = upkeep.slower, upkeep.agreeing
        if not fresh.noisy:
            goes_on = candidate is not None and not differ(candidate, fresh)
            candidate, agreeing = (fastest(candidate, fresh), agreeing + 1) if goes_on and candidate else (fresh, 1)
    if candidate is not None and agreeing >= AGREEING:
        best, candidate, agreeing = candidate, None, 0
    unchanged = 0 if differ(profile, best) else min(upkeep.unchanged + 1, _MOST)
    return best, Upkeep(measured=now, unchanged=unchanged, slower=candidate, agreeing=agreeing)


def _moment(measured_at: str) -> float:
    try:
        return max(0.0, datetime.fromisoformat(measured_at).timestamp())
    except ValueError:
        return 0.0
