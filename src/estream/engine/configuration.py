"""What a sweep's pipeline is set to: how pages are read, and how the arena is divided."""

from dataclasses import asdict, dataclass
from typing import Any

from estream.units import MiB

#: Reading ahead of the routing pays only where nearly all of a layer's experts will be used.
SPECULATIVE_SHARE = 0.9


@dataclass(frozen=True)
class Configuration:
    """How the storage-compute pipeline is set. The values of a plain ``Configuration()`` serve a machine not yet measured.

    Attributes:
        lanes: readers that each keep one read in flight.
        request_bytes: bytes of one read; adjacent pages that fit into it together are a group, read by one request.
        ring_bytes: room that reading ahead gets, at least what the largest pages need.
        pinned_bytes: the most that may be kept between sweeps, where the budget leaves it; None for no bound.
        speculative_share: experts are read ahead of the routing where at least this share of them is expected to be used.

    """

    lanes: int = 4
    request_bytes: int = 2 * MiB
    ring_bytes: int = 256 * MiB
    pinned_bytes: int | None = None
    speculative_share: float = SPECULATIVE_SHARE

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
