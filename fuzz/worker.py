"""One target in a process of its own: replays its corpus, then changes its inputs at random, with atheris or without.

Prints a line of JSON for each new finding and one at the end.
"""

import argparse
import faulthandler
import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from fuzz.harness import LONGEST_INPUT, Finding, Runner, Target, keep
from fuzz.targets import load_target, open_inputs


class Session:
    """Counts inputs and keeps the first of each kind of finding."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self.count = 0
        self._runner = Runner(target, folder)
        self._counted = folder / "count"
        self._seen: set[str] = set()

    def check(self, data: bytes, source: str) -> Finding | None:
        self.count += 1
        self._counted.write_text(str(self.count))
        found = self._runner.check(data)
        if found is not None:
            kept = keep(self.target, data, found)
            if found.name not in self._seen:
                self._seen.add(found.name)
                say({"finding": found.message, "input": source, "kept": str(kept)})
        return found


def say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


def replay(session: Session) -> list[bytes]:
    """Run the corpus; returns its inputs. Those that are known to be open are left out."""
    known, inputs = open_inputs(), []
    for path in session.target.inputs():
        name = f"{session.target.name}/{path.name}"
        if name not in known:
            inputs.append(path.read_bytes())
            session.check(inputs[-1], name)
    return inputs


def search(session: Session, inputs: list[bytes], seconds: float, seed: int) -> None:
    rng, end = Random(seed), time.monotonic() + seconds
    while inputs and time.monotonic() < end:
        data = session.target.mutate(rng.choice(inputs), rng)
        # A chain of changes gets further than one.
        while rng.random() < 0.3:
            data = session.target.mutate(data, rng)
        session.check(data[:LONGEST_INPUT], f"seed {seed}, input {session.count}")


def search_with_coverage(session: Session, seconds: float, seed: int, found: Path) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris

    def change(data: bytes, most: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() < 0.2:
            return bytes(atheris.Mutate(data, len(data) + 64))[:most]
        return session.target.mutate(data, rng)[:most]

    def one(data: bytes) -> None:
        session.check(data, f"input {session.count}")

    found.mkdir(parents=True, exist_ok=True)
    arguments = [sys.argv[0], str(found), str(session.target.corpus), f"-max_total_time={int(seconds)}", f"-seed={seed}"]
    # Signals are left to faulthandler, which knows the lines of Python.
    signals = [f"-handle_{name}=0" for name in ("segv", "bus", "abrt", "ill", "fpe")]
    limits = [f"-max_len={LONGEST_INPUT}", "-timeout=60", "-rss_limit_mb=2048", f"-artifact_prefix={found.parent}/"]
    atheris.Setup([*arguments, *signals, *limits, "-print_final_stats=1"], one, custom_mutator=change)
    atheris.Fuzz()


def main() -> None:
    faulthandler.enable()
    parser = argparse.ArgumentParser(prog="python -m fuzz.worker")
    parser.add_argument("target")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mended", action="store_true", help="do not search where fuzz/open.txt has TARGET/*")
    parser.add_argument("--atheris", action="store_true", help="guided by coverage; begin with fuzz.guided")
    parser.add_argument("--found", type=Path, help="where inputs that reach new code are kept")
    parser.add_argument("--folder", type=Path, help="where inputs are run")
    parser.add_argument("--input", type=Path, action="append", help="run these alone")
    options = parser.parse_args()
    target = load_target(options.target)
    with tempfile.TemporaryDirectory() as folder:
        session = Session(target, options.folder or Path(folder))
        if options.input:
            found = [session.check(path.read_bytes(), str(path)) for path in options.input]
            print(*(f.trace for f in found if f), sep="\n")
            sys.exit(any(found))
        inputs = replay(session)
        if options.atheris:
            search_with_coverage(session, options.seconds, options.seed, options.found)
        if not (options.mended and f"{target.name}/*" in open_inputs()):
            search(session, inputs, options.seconds, options.seed)
        say({"inputs": session.count})


if __name__ == "__main__":
    main()
