"""What a machine can do: its storage as a function of lanes and request size, its computing as one of token counts.

A profile is measured by ``estream tune``, or written by hand from published figures (``profiles/``, ``--device-profile``).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from estream.configurator.costs import Costs, MeasuredCosts, RatedCosts
from estream.configurator.curve import Curve, number
from estream.errors import OptionError

FORMAT = "estream-profile"
VERSION = 1


@dataclass(frozen=True)
class Storage:
    """Direct reads: for each number of lanes, bytes per second as a function of the bytes of a request.

    ``embedding`` is the time in seconds to gather a number of embedding rows. ``compute_slowdown`` says by how much
    computing takes longer while lanes read at full speed, ``read_slowdown`` by how much reading does while all threads compute.
    """

    rates: Mapping[int, Curve]
    embedding: Curve
    compute_slowdown: float = 1.0
    read_slowdown: float = 1.0

    def rate(self, lanes: int, request_bytes: int) -> float:
        """Bytes per second with so many reads in flight; between measured numbers of lanes on a straight line."""
        known = sorted(self.rates)
        lower = max((n for n in known if n <= lanes), default=known[0])
        upper = min((n for n in known if n >= lanes), default=known[-1])
        low, high = self.rates[lower](request_bytes), self.rates[upper](request_bytes)
        return low if upper == lower else low + (high - low) * (lanes - lower) / (upper - lower)

    def scaled(self, factor: float) -> "Storage":
        """The same storage, ``factor`` times as fast."""
        rates = {
            n: Curve(tuple(type(p)(p.x, p.value * factor, p.spread) for p in curve.points)) for n, curve in self.rates.items()
        }
        return Storage(rates, self.embedding, self.compute_slowdown, self.read_slowdown)

    @property
    def spread(self) -> float:
        return max(curve.spread for curve in self.rates.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "rates": {str(n): curve.to_json() for n, curve in self.rates.items()},
            "embedding": self.embedding.to_json(),
            "compute_slowdown": self.compute_slowdown,
            "read_slowdown": self.read_slowdown,
        }


@dataclass(frozen=True)
class Profile:
    """A machine for one package. ``page_s`` is the time in seconds that the host spends on a page beside device and reader."""

    name: str
    kind: Literal["measured", "published"]
    storage: Storage
    costs: Costs
    page_s: float
    process_bytes: int
    memory_bytes: int | None = None
    measured_at: str = ""
    sources: tuple[str, ...] = ()
    key: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "kind": self.kind,
            "sources": list(self.sources),
            "measured_at": self.measured_at,
            "key": dict(self.key),
            "memory_bytes": self.memory_bytes,
            "process_bytes": self.process_bytes,
            "page_s": self.page_s,
            "storage": self.storage.to_json(),
            "compute": self.costs.to_json(),
        }


def read_profile(path: Path) -> Profile:
    """A profile from a file.

    Raises:
        OptionError: it cannot be read, or a value is missing or of no use; the message names the key.

    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise OptionError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise OptionError(f"{path}: not a device profile: 'format' must be '{FORMAT}'")
    if data.get("version") != VERSION:
        raise OptionError(f"{path}: profile version {data.get('version')!r}, this estream reads version {VERSION}")
    return _from_json(str(path), data)


def _from_json(where: str, data: Mapping[str, Any]) -> Profile:
    kind = data.get("kind")
    if kind not in ("measured", "published"):
        raise OptionError(f"{where}: 'kind' must be 'measured' or 'published', found {kind!r}")
    compute = _object(where, data, "compute")
    costs: type[MeasuredCosts] | type[RatedCosts] = MeasuredCosts if "attention" in compute else RatedCosts
    memory = data.get("memory_bytes")
    return Profile(
        name=str(data.get("name", where)),
        kind=kind,
        storage=_storage(where, _object(where, data, "storage")),
        costs=costs.from_json(f"{where}: 'compute'", compute),
        page_s=number(where, data, "page_s"),
        process_bytes=int(number(where, data, "process_bytes")),
        memory_bytes=None if memory is None else int(number(where, data, "memory_bytes")),
        measured_at=str(data.get("measured_at", "")),
        sources=tuple(map(str, data.get("sources", ()))),
        key=data.get("key", {}),
    )


def _storage(where: str, data: Mapping[str, Any]) -> Storage:
    rates = _object(where, data, "rates")
    if not rates or not all(n.isdigit() and int(n) > 0 for n in rates):
        raise OptionError(f"{where}: 'storage.rates' must map numbers of lanes to rows of [request bytes, bytes per second]")
    curves = {int(n): Curve.from_json(rows, f"{where}: 'storage.rates.{n}'") for n, rows in rates.items()}
    if odd := [p.x for curve in curves.values() for p in curve.points if p.x < 4096 or p.x % 4096]:
        raise OptionError(f"{where}: 'storage.rates': requests must be multiples of 4096 bytes, found {odd[0]:g}")
    return Storage(
        curves,
        Curve.from_json(data.get("embedding"), f"{where}: 'storage.embedding'"),
        number(where, data, "compute_slowdown", 1.0),
        number(where, data, "read_slowdown", 1.0),
    )


def _object(where: str, data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise OptionError(f"{where}: '{key}' must be an object, found {value!r}")
    return value
