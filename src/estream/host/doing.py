"""What takes long is said while it lasts: on the logger ``estream``, or by whoever loads in a way of their own."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

logger = logging.getLogger("estream")

#: Takes what is done, and about how many seconds it takes (None where that is not known); lasts as long as that does.
Doing = Callable[[str, float | None], AbstractContextManager[None]]


@contextmanager
def logged(what: str, seconds: float | None) -> Iterator[None]:
    """Log it as it begins."""
    logger.info("%s%s", what, "" if seconds is None else f" (about {seconds:.0f} s)")
    yield
