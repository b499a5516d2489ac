"""A ring of bytes in the arena: pages take contiguous places in reading order and give them back in any order."""

from collections import deque
from dataclasses import dataclass


@dataclass
class Place:
    """Bytes [offset, offset + size) of the ring."""

    offset: int
    size: int
    free: bool = False


class Ring:
    """Allocates at the head and reclaims at both ends: the oldest place, or the newest, once it is free."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._places: deque[Place] = deque()
        self._head = 0

    @property
    def used(self) -> int:
        """Bytes that are not free, without gaps."""
        return sum(p.size for p in self._places if not p.free)

    def take(self, size: int) -> Place | None:
        """A contiguous place, or None where there is no room now."""
        if size > self.size:
            raise ValueError(f"a place of {size} bytes does not fit a ring of {self.size}")
        offset = self._fit(size)
        if offset is None:
            return None
        place = Place(offset, size)
        self._places.append(place)
        self._head = offset + size
        return place

    def _fit(self, size: int) -> int | None:
        if not self._places:
            return 0
        tail = self._places[0].offset
        if self._head > tail:
            if self._head + size <= self.size:
                return self._head
            return 0 if size <= tail else None
        return self._head if self._head + size <= tail else None

    def give_back(self, place: Place) -> None:
        if place.free:
            raise ValueError("a place was given back twice")
        place.free = True
        while self._places and self._places[0].free:
            self._places.popleft()
        # A page that is held for long, such as a router used to predict, must not keep what was taken behind it.
        while self._places and self._places[-1].free:
            self._places.pop()
        self._head = self._places[-1].offset + self._places[-1].size if self._places else 0
