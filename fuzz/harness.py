"""What every target shares: how one input is run, and what counts as a finding."""

import faulthandler
import hashlib
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from estream.errors import EstreamError
from fuzz.guard import Guard

FUZZ = Path(__file__).parent
CORPUS = FUZZ / "corpus"
CRASHES = FUZZ / "crashes"
#: One input may take so long, and the process so much memory.
SECONDS = 10.0
BYTES = 2 << 30
LONGEST_INPUT = 1 << 16

#: Runs one input. Raises EstreamError where it is refused, FoundError where an answer is wrong.
Run = Callable[[bytes], None]


class FoundError(Exception):
    """An input was taken, and what came of it is wrong."""


@dataclass(frozen=True)
class Target:
    """``prepare`` makes what inputs are put into, in a folder of its own, and returns what runs one input."""

    name: str
    suffix: str
    prepare: Callable[[Path], Run]
    mutate: Callable[[bytes, Random], bytes]
    seeds: Callable[[], dict[str, bytes]]

    @property
    def corpus(self) -> Path:
        return CORPUS / self.name

    def inputs(self) -> list[Path]:
        return sorted(p for p in self.corpus.glob("*") if p.is_file())


@dataclass(frozen=True)
class Finding:
    """``place`` is where in estream it happened: findings of one place and kind are one."""

    kind: str
    place: str
    message: str
    trace: str

    @property
    def name(self) -> str:
        return f"{self.kind}-{hashlib.sha256(self.place.encode()).hexdigest()[:8]}"


class Runner:
    """Runs inputs of one target in ``folder``. One in a process: its guard stays."""

    def __init__(self, target: Target, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["ESTREAM_CACHE"] = str(folder / "cache")
        os.environ["TMPDIR"] = str(folder)
        sys.dont_write_bytecode = True
        self._current = folder / "current"
        self._run = target.prepare(folder)
        self._guard = Guard(folder)
        self._limit_memory()

    def _limit_memory(self) -> None:
        """Address space, since what is reserved fails at once where what is used would end the process."""
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, resource.RLIM_INFINITY))

    def check(self, data: bytes) -> Finding | None:
        """What is wrong about an input; None where it is refused in order, or taken in order.

        A process that hangs or dies leaves its input in the file ``current``.
        """
        self._current.write_bytes(data)
        faulthandler.dump_traceback_later(SECONDS + 2, exit=True)
        found, begin = None, time.monotonic()
        try:
            with self._guard.armed(), suppress(EstreamError):
                self._run(data)
        except KeyboardInterrupt:
            raise
        except FoundError as error:
            found = Finding("wrong", str(error).partition(":")[0], str(error), "")
        except BaseException as error:  # panics of native code are no Exception
            found = _finding(error)
        finally:
            faulthandler.cancel_dump_traceback_later()
        if self._guard.touched:
            path = self._guard.touched[0]
            return Finding("file", path.partition(" ")[0], path, "")
        if found is None and (took := time.monotonic() - begin) > SECONDS:
            return Finding("slow", "whole", f"{took:.1f} s", "")
        return found


def _finding(error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/estream/" in f.filename and "/fuzz/" not in f.filename] or frames
    place = f"{type(error).__name__} in {Path(own[-1].filename).name}:{own[-1].name}"
    trace = "".join(traceback.format_exception(error))[-6000:]
    return Finding(type(error).__name__, place, f"{place}: {str(error)[:200]!r}", trace)


def keep(target: Target, data: bytes, finding: Finding) -> Path:
    """Put an input and its traceback among the crashes; of two with the same finding the shorter one."""
    folder = CRASHES / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.name}{target.suffix}"
    if not path.exists() or len(data) < path.stat().st_size:
        path.write_bytes(data)
        (folder / f"{finding.name}.txt").write_text(f"{finding.message}\n\n{finding.trace}", "utf-8", "backslashreplace")
    return path
