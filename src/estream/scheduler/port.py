"""What the scheduler needs of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from estream.engine.batch import BatchShape
from estream.engine.sweep import Advance
from estream.engine.wanted import Request


class Times(Protocol):
    """A sweep as it is expected or was, in seconds: from call to answer, in the device, with a read in flight."""

    @property
    def ttft_s(self) -> float: ...

    @property
    def compute_s(self) -> float: ...

    @property
    def read_s(self) -> float: ...


class Read(Protocol):
    """What a request gave (:class:`estream.Reading`)."""

    @property
    def stats(self) -> Times: ...


R_co = TypeVar("R_co", bound=Read, covariant=True)


@dataclass(frozen=True)
class Prepared:
    """Requests whose prompts are token ids and that have passed every check, and their ``tokens`` where they share a sweep
    with nobody.
    """

    requests: tuple[Request, ...]
    tokens: int


class Reader(Protocol[R_co]):
    """A model that reads requests. All of it may be called from any thread."""

    def prepare(self, requests: Sequence[Request]) -> Prepared:
        """Tokenize and check. Raises PromptError, or BudgetError where no sweep can ever hold them."""
        ...

    def room_for(self, requests: Sequence[Request]) -> BatchShape | None:
        """What one sweep over prepared requests depends on; None where it does not fit into the budget."""
        ...

    def expect(self, shape: BatchShape) -> Times | None:
        """What a sweep will take; None where this machine was not measured."""
        ...

    def read(self, requests: Sequence[Request], advance: Advance, /) -> Sequence[R_co]:
        """Read them in one sweep, which can be cancelled from when ``advance`` gets 0 to when it gets all parts."""
        ...

    def cancel(self) -> None:
        """Stop the sweep that runs at its next page."""
        ...
