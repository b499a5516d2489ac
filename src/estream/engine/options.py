"""How a model is loaded and run: what the user says, and what is chosen for the pipeline."""

import operator
from dataclasses import asdict, dataclass
from types import NoneType
from typing import Any

from estream.errors import OptionError
from estream.host.sizes import MiB

#: Experts that are used less surely are not read ahead of the routing: what they cost others is more than they hide.
READ_AHEAD_CHANCE = 0.9


@dataclass(frozen=True)
class Configuration:
    """How the storage-compute pipeline is set. The values of a plain ``Configuration()`` serve a machine not yet measured.

    Attributes:
        lanes: readers that each keep one read in flight.
        request_bytes: bytes of one read; adjacent pages that fit into it together are a group, read by one request.
        ring_bytes: room that reading ahead gets, at least what the largest pages need.
        pinned_bytes: the most that may be kept between sweeps, where the budget leaves it; None for no bound.
        read_ahead_chance: an expert is read ahead of the routing where it is used with at least this probability.

    """

    lanes: int = 4
    request_bytes: int = 2 * MiB
    ring_bytes: int = 256 * MiB
    pinned_bytes: int | None = None
    read_ahead_chance: float = READ_AHEAD_CHANCE

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class LoadOptions:
    """How a model runs. ``memory`` is the budget of the whole process in bytes; None derives it from the machine.

    ``lanes``, ``request_bytes``, ``ring_bytes`` and ``pinned_bytes`` (see :class:`Configuration`) are chosen by the
    configurator where they are None. ``soc`` names the chip whose NPU the device ``qnn`` uses; None takes the first that the
    package holds compiled graphs for.
    """

    memory: int | None = None
    threads: int | None = None
    device: str = "cpu"
    activations: str = "int8"
    lanes: int | None = None
    request_bytes: int | None = None
    ring_bytes: int | None = None
    pinned_bytes: int | None = None
    direct_io: bool = True
    soc: str | None = None

    def __post_init__(self) -> None:
        """Whole numbers of numpy become Python's."""
        for name in self._numbers:
            value = getattr(self, name)
            if not isinstance(value, bool | None) and hasattr(value, "__index__"):
                object.__setattr__(self, name, operator.index(value))

    @property
    def _numbers(self) -> tuple[str, ...]:
        return ("memory", "threads", "lanes", "request_bytes", "ring_bytes", "pinned_bytes")

    def check(self) -> None:
        """Raises OptionError."""
        for name in self._numbers:
            if type(value := getattr(self, name)) not in (int, NoneType):
                raise OptionError(f"{name} must be a whole number, not {value!r}")
        if self.device not in ("cpu", "qnn"):
            raise OptionError(f"device must be cpu or qnn, not {self.device!r}")
        if self.device == "qnn" and self.activations != "int8":
            raise OptionError("the NPU computes with float16 activations; leave --activations out")
        if self.device == "cpu" and self.soc is not None:
            raise OptionError("soc names a chip with an NPU; give it with device qnn")
        if self.activations not in ("int8", "float"):
            raise OptionError(f"activations must be int8 or float, not '{self.activations}'")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise OptionError(f"threads must lie in 1..1024, not {self.threads}")
        if self.lanes is not None and not 1 <= self.lanes <= 64:
            raise OptionError(f"lanes must lie in 1..64, not {self.lanes}")
        if self.request_bytes is not None and (self.request_bytes < 4096 or self.request_bytes % 4096):
            raise OptionError(f"the size of a request must be a multiple of 4096 bytes, not {self.request_bytes}")

    @property
    def float_activations(self) -> bool:
        return self.activations == "float"

    @property
    def given(self) -> dict[str, int]:
        """The values of a :class:`Configuration` that the user has set."""
        names = ("lanes", "request_bytes", "ring_bytes", "pinned_bytes")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def apply(self, configuration: Configuration) -> Configuration:
        """The configuration with what the user has set."""
        return Configuration(**configuration.to_json() | self.given)
