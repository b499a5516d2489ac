"""What tests of threads side by side share."""

import random
import threading
import time
from collections.abc import Callable


def naps(seed: int) -> Callable[[], None]:
    """Sleeps of up to two milliseconds, in the same order in every run."""
    lengths = random.Random(seed)
    return lambda: time.sleep(lengths.random() / 500)


def threads_left() -> list[str]:
    """Threads of a conversion's pipeline that still live."""
    return [t.name for t in threading.enumerate() if t.name.startswith(("read-ahead", "write-behind"))]
