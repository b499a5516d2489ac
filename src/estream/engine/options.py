"""How a model is loaded and run."""

from dataclasses import dataclass

from estream.engine.configuration import Configuration
from estream.errors import OptionError


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

    def check(self) -> None:
        """Raises OptionError."""
        if self.device not in ("cpu", "qnn"):
            raise OptionError(f"device must be cpu or qnn, not '{self.device}'")
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
    def given(self) -> dict[str, int]:
        """The values of a :class:`Configuration` that the user has set."""
        names = ("lanes", "request_bytes", "ring_bytes", "pinned_bytes")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def apply(self, configuration: Configuration) -> Configuration:
        """The configuration with what the user has set."""
        return Configuration(**configuration.to_json() | self.given)
