"""Parts of a loaded model that tests look at or stand in front of."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from estream.api.model import Model
from estream.engine.memory import ModelMemory
from estream.engine.options import Configuration


def memory_of(model: Model) -> ModelMemory:
    return model._memory


def configuration_of(model: Model) -> Configuration:
    return model._setup.configuration


def pinned_bytes_of(model: Model) -> int:
    """Bytes of the arena's places for pinned pages."""
    return sum(model.package.manifest.tape[index].padded_bytes for index in model._setup.arena.pinned)


def device_of(model: Model) -> Any:
    return model._device


@contextmanager
def instead_of(model: Model, method: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Inside the block the device does what ``make`` makes of its own method."""
    device = device_of(model)
    original = getattr(device, method)
    setattr(device, method, make(original))
    try:
        yield
    finally:
        setattr(device, method, original)
