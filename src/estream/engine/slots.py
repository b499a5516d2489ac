"""Slots of the arena and the states that they go through."""

from dataclasses import dataclass
from enum import Enum

from estream.engine.ring import Place


class SlotState(Enum):
    READING = "reading"
    READY = "ready"
    COMPUTING = "computing"


@dataclass
class Slot:
    """Where one page lies in the arena. ``place`` is None outside the ring: pinned, or in the spare place."""

    address: int
    state: SlotState
    ticket: int
    place: Place | None


class SlotError(AssertionError):
    """A slot was used out of turn: a fault of estream itself."""
