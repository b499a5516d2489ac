"""How fast sweeps were lately: what waiting costs is judged by that."""

from collections import deque
from dataclasses import dataclass

#: Sweeps that are remembered.
_LATELY = 8
#: To gather requests takes at most this part of a sweep, and before the first one this many seconds.
GATHERED_PART, GATHERED_FIRST_S = 0.01, 0.005
#: What a queue that has seen no sweep yet tells those that it refuses, in seconds.
_UNKNOWN_WAIT_S = 1.0


@dataclass(frozen=True)
class _Swept:
    tickets: int
    tokens: int
    seconds: float


class Pace:
    """Figures of the last sweeps."""

    def __init__(self) -> None:
        self._swept: deque[_Swept] = deque(maxlen=_LATELY)

    def note(self, tickets: int, tokens: int, seconds: float) -> None:
        """A sweep has ended well."""
        self._swept.append(_Swept(tickets, tokens, seconds))

    @property
    def usual_s(self) -> float:
        """What a sweep takes; infinite before the first."""
        return sum(each.seconds for each in self._swept) / len(self._swept) if self._swept else float("inf")

    @property
    def shortest_s(self) -> float:
        """What a sweep takes at least; 0 before the first."""
        return min((each.seconds for each in self._swept), default=0.0)

    @property
    def crowd(self) -> int:
        """The most tickets that shared a sweep; 0 before the first."""
        return max((each.tickets for each in self._swept), default=0)

    @property
    def gather_s(self) -> float:
        """How long a sweep may wait for others to join."""
        return GATHERED_PART * self.shortest_s if self._swept else GATHERED_FIRST_S

    def wait_s(self, tokens: int) -> float:
        """About how long so many waiting tokens take."""
        if not self._swept:
            return _UNKNOWN_WAIT_S
        return max(self.shortest_s, tokens * sum(s.seconds for s in self._swept) / sum(s.tokens for s in self._swept))
