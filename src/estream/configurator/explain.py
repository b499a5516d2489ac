"""Says of each value of a plan where it comes from: measured, derived, a policy, or given by the user."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from estream.configurator.profile import Profile
from estream.configurator.search import NEAR_RING, SearchResult
from estream.engine.memory import ArenaPlan, ModelMemory
from estream.engine.options import LoadOptions
from estream.host import system
from estream.host.sizes import format_bytes

Origin = Literal["measured", "derived", "policy", "given", "published"]


@dataclass(frozen=True)
class Explained:
    """A value as text, its origin, and the reason in a sentence."""

    name: str
    value: str
    origin: Origin
    why: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "origin": self.origin, "why": self.why}


def explain(
    memory: ModelMemory, profile: Profile, search: SearchResult, options: LoadOptions, arena: ArenaPlan
) -> tuple[Explained, ...]:
    """Every value of a plan."""
    rows = (*_machine(memory, profile, options), *_pipeline(memory, profile, search, arena))
    given = {"lanes": "lanes", "request": "request_bytes", "ring": "ring_bytes", "pinned": "pinned_bytes"}
    return tuple(
        replace(row, origin="given", why="set by the user") if given.get(row.name) in options.given else row for row in rows
    )


def _machine(memory: ModelMemory, profile: Profile, options: LoadOptions) -> Iterator[Explained]:
    known: Origin = "measured" if profile.kind == "measured" else "published"
    c = _rates(profile)
    budget = format_bytes(memory.budget_bytes)
    if options.memory is None:
        yield Explained("budget", budget, "derived", "what the machine, or its control group, has free")
    else:
        yield Explained("budget", budget, "given", "set by the user, at most what the machine has")
    yield Explained("process", format_bytes(memory.process_bytes), known, "resident memory before anything is loaded")
    reserve = format_bytes(memory.reserve_bytes)
    yield Explained("reserve", reserve, "policy", "32 MiB or 4 % of the budget, for page tables and small arrays")
    yield Explained("storage", c, known, f"spread {profile.storage.spread:.0%} between repeated samples")
    slow = profile.storage
    both = f"computing x{slow.compute_slowdown:.2f}, reading x{slow.read_slowdown:.2f}"
    yield Explained("interference", both, known, "how much longer each takes while the other runs at full speed")
    yield Explained("host time", f"{profile.page_s * 1e6:.0f} us a page", known, "the sweep's own code, timed")
    if profile.kind == "measured":
        threads = profile.key.get("threads", "?")
        given: Origin = "given" if options.threads else "derived"
        yield Explained("threads", str(threads), given, "affinity mask and control group's quota")
        yield _lock(options, memory)


def _rates(profile: Profile) -> str:
    """The storage's slowest and fastest measured combination."""
    rates = [(p.value, n, int(p.x)) for n, curve in profile.storage.rates.items() for p in curve.points]
    (low, *_), (high, lanes, request) = min(rates), max(rates)
    return f"{format_bytes(low)}/s to {format_bytes(high)}/s ({lanes} lanes of {format_bytes(request)})"


def _lock(options: LoadOptions, memory: ModelMemory) -> Explained:
    limit, where = system.locking_limit()
    if options.memory is None:
        return Explained("locking", "no", "policy", "only a budget that the user sets is kept from being swapped")
    fits = limit is None or limit >= memory.arena_bytes
    text = "no limit" if limit is None else format_bytes(limit)
    return Explained("locking", "yes" if fits else "if privileged", "derived", f"{text} ({where})")


def _pipeline(memory: ModelMemory, profile: Profile, search: SearchResult, arena: ArenaPlan) -> Iterator[Explained]:
    c = search.chosen.configuration
    expert = max((p.padded_bytes for p in memory.manifest.tape if p.spec.kind == "expert"), default=1)
    rate = format_bytes(profile.storage.rate(c.lanes, c.request_bytes))
    yield Explained("lanes", str(c.lanes), "measured", f"with this request they read {rate}/s, nearly the fastest")
    yield Explained("request", format_bytes(c.request_bytes), "measured", "reads nearly fastest, nearest to the default size")
    group = max(1, c.request_bytes // expert)
    each = f"{group} expert page{'s' if group > 1 else ''} a request"
    yield Explained("group", each, "derived", f"a page is {format_bytes(expert)}")
    least = memory.smallest_ring
    why = f"the least with which no prompt is simulated {NEAR_RING:.0%} slower; the largest pages need {format_bytes(least)}"
    yield Explained("ring", format_bytes(arena.ring_bytes), "derived", why)
    pinned = f"{len(arena.pinned)} of {len(memory.manifest.tape)} pages, {format_bytes(arena.pinned_bytes)}"
    kept = "all memory that is left, surest pages first, then by depth; read once, then kept"
    yield Explained("pinned", pinned, "derived", kept)
    why = "experts used with at least this chance are read ahead of the routing: simulated to be faster"
    yield Explained("read ahead", f"{c.read_ahead_chance:.0%}", "derived", why)
    other = search.runner_up
    if other is not None:
        o = other.configuration
        kept = "all that fits" if o.pinned_bytes is None else format_bytes(o.pinned_bytes)
        what = f"ring {format_bytes(o.ring_bytes)}, pinned {kept}: {other.cost_s:.3f} s in {format_bytes(other.peak_bytes)}"
        here = (
            f"chosen: {search.chosen.cost_s:.3f} s in {format_bytes(search.chosen.peak_bytes)}; {search.tried} were simulated"
        )
        yield Explained("runner-up", what, "derived", here)
