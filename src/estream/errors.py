"""The exceptions of estream. Each message names the thing, what was expected and found, and what to do."""

__all__ = [
    "BudgetError",
    "CancelledError",
    "CheckpointError",
    "DeviceError",
    "EstreamError",
    "NumericError",
    "OptionError",
    "PackageError",
    "PromptError",
    "QueueFullError",
    "ReadError",
    "StateError",
]


class EstreamError(Exception):
    """Anything that estream refuses or that failed outside of it."""


class OptionError(EstreamError):
    """An option or argument has a value that cannot be used."""


class CheckpointError(EstreamError):
    """A checkpoint cannot be converted: unknown, incomplete, damaged, or with tensors left over."""


class PackageError(EstreamError):
    """A package cannot be used: absent, damaged, of another format version or device."""


class ReadError(PackageError):
    """Reading a package failed during a sweep: an I/O error, a truncated file or a wrong checksum."""


class DeviceError(EstreamError):
    """A device, its compiler or its driver failed or is not there."""


class BudgetError(EstreamError):
    """The memory budget is below the floor of this model and prompt. ``floor_bytes`` says what would do."""

    def __init__(self, message: str, floor_bytes: int) -> None:
        super().__init__(message)
        self.floor_bytes = floor_bytes

    def __reduce__(self) -> "tuple[type[BudgetError], tuple[str, int]]":
        """Other processes get both arguments."""
        return type(self), (str(self), self.floor_bytes)


class CancelledError(EstreamError):
    """A sweep was stopped by ``Model.cancel()``; the model stays usable."""


class PromptError(EstreamError):
    """A prompt cannot be run: empty, longer than the context, or with ids outside the vocabulary."""


class NumericError(EstreamError):
    """A sweep computed values that are no finite numbers, so there is no answer; the message says in which layer."""


class QueueFullError(EstreamError):
    """Too many requests wait for their sweep. In about ``wait_s`` seconds there may be room."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s

    def __reduce__(self) -> "tuple[type[QueueFullError], tuple[str, float]]":
        """Other processes get both arguments."""
        return type(self), (str(self), self.wait_s)


class StateError(EstreamError):
    """A model or scheduler is used after ``close()`` or in a forked child."""
