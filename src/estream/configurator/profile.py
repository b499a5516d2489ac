"""What a machine can do: its storage as a function of lanes and request size, its computing as one of token counts.

A profile is measured by ``estream tune``, or written by hand from published figures (``profiles/``, ``--device-profile``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from estream.configurator.costs import Costs, costs_of
from estream.configurator.curve import Curve, curve_of, rows_of
from estream.errors import OptionError
from estream.host.busy import BUSY_SHARE
from estream.host.regular_file import read_regular
from estream.host.sizes import MiB
from estream.schema import Bytes, NotNegative, Record, SchemaError, from_plain, parse, shown, to_plain

FORMAT = "estream-profile"
VERSION = 1
#: Keys in the order of the file.
_KEYS = [
    "name",
    "kind",
    "sources",
    "measured_at",
    "others",
    "key",
    "memory_bytes",
    "process_bytes",
    "page_s",
    "storage",
    "compute",
]
LARGEST = 16 * MiB

LaneCount = Annotated[int, Meta(ge=1, le=1024)]
#: By how much something takes longer beside something else.
Slowdown = Annotated[float, Meta(ge=1, le=1e6)]


class Storage(Record, frozen=True):
    """Direct reads: for each number of lanes, bytes per second as a function of the bytes of a request.

    ``embedding`` is the time in seconds to gather a number of embedding rows. ``compute_slowdown`` says by how much
    computing takes longer while lanes read at full speed, ``read_slowdown`` by how much reading does while all threads compute.
    """

    rates: Annotated[Mapping[LaneCount, Curve], Meta(min_length=1)]
    embedding: Curve
    compute_slowdown: Slowdown = 1.0
    read_slowdown: Slowdown = 1.0

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


class Profile(Record, frozen=True):
    """A machine for one package. ``page_s`` is the time in seconds that the host spends on a page beside device and reader.

    ``others`` is the share of processors or disk that others took while it was measured; None where that is not known.
    """

    name: str
    kind: Literal["measured", "published"]
    storage: Storage
    costs: Costs = field(name="compute")
    page_s: NotNegative
    process_bytes: Bytes
    memory_bytes: Bytes | None = None
    measured_at: str = ""
    others: NotNegative | None = None
    sources: tuple[str, ...] = ()
    key: Mapping[str, Any] = field(default_factory=dict)

    @property
    def noisy(self) -> bool:
        """Whether it is known that the machine was busy while it was measured."""
        return self.others is not None and self.others > BUSY_SHARE

    def to_json(self) -> dict[str, Any]:
        """The profile's file, as plain values."""
        values = to_plain(self, rows_of)
        return {"format": FORMAT, "version": VERSION} | {key: values[key] for key in _KEYS}


def read_profile(path: Path) -> Profile:
    """A profile from a file.

    Raises:
        OptionError: it cannot be read, or a value is missing or of no use; the message names the key.

    """
    try:
        return _profile(parse(read_regular(path, LARGEST)), str(path))
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror})") from error
    except SchemaError as error:
        raise OptionError(f"{path}: {error}") from error


def _profile(data: Any, name: str) -> Profile:
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise SchemaError(f"not a device profile: 'format' must be '{FORMAT}'")
    if (version := data.pop("version", None)) != VERSION:
        raise SchemaError(f"profile version {shown(version)}, this estream reads version {VERSION}")
    profile = from_plain({"name": name} | data, Profile, made)
    requests = [p.x for curve in profile.storage.rates.values() for p in curve.points]
    if odd := [x for x in requests if x < 4096 or x % 4096]:
        raise SchemaError(f"'storage.rates': requests must be multiples of 4096 bytes, found {odd[0]:g}")
    return profile


def made(kind: Any, data: Any) -> Any:
    """A profile's costs and curves from plain values, where :func:`estream.schema.from_plain` meets them."""
    return costs_of(data) if kind is Costs else curve_of(kind, data)
