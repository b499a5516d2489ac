"""How a model is loaded and run."""

from dataclasses import dataclass

from estream.errors import OptionError
from estream.units import MiB


@dataclass(frozen=True)
class LoadOptions:
    """How a model runs. ``memory`` is the budget of the whole process in bytes; None derives it from the machine."""

    memory: int | None = None
    threads: int | None = None
    device: str = "cpu"
    activations: str = "int8"
    lanes: int = 4
    request_bytes: int = 2 * MiB
    direct_io: bool = True

    def check(self) -> None:
        """Raises OptionError."""
        if self.device != "cpu":
            raise OptionError(f"device must be cpu, not '{self.device}'")
        if self.activations not in ("int8", "float"):
            raise OptionError(f"activations must be int8 or float, not '{self.activations}'")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise OptionError(f"threads must lie in 1..1024, not {self.threads}")
        if not 1 <= self.lanes <= 64:
            raise OptionError(f"lanes must lie in 1..64, not {self.lanes}")
