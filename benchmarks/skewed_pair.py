"""Two builds of estream beside each other on a model that uses its experts unevenly: both loaded, both warm, prompts in turn.

    python benchmarks/skewed_pair.py PKG --old PYTHON --new PYTHON --tokens 16,128,512 --rounds 7

OLD and NEW are the interpreters of two virtual environments with one build each. Prints old / new, the median of the pairwise
ratios of TTFT, and the bytes that each read.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from estream.package.package import open_package
from estream.package.topics import prompt_ids

PROGRAM = """
import json, sys
import numpy as np
import estream
with estream.load(sys.argv[1], memory=sys.argv[2]) as model:
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        stats = model.prefill(np.array(json.loads(line), np.int32)).stats
        print(json.dumps([stats.ttft_s, stats.bytes_read, stats.compute_s]), flush=True)
"""


class Build:
    """A loaded model of one build, in a process of its own."""

    def __init__(self, python: str, package: Path, memory: str, cache: str) -> None:
        environment = os.environ | {"ESTREAM_CACHE": cache}
        self._process = subprocess.Popen(
            [python, "-c", PROGRAM, str(package), memory],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def prefill(self, ids: list[int]) -> tuple[float, int, float]:
        """TTFT and the time inside the device in seconds, and the bytes read."""
        assert self._process.stdin
        print(json.dumps(ids), file=self._process.stdin, flush=True)
        seconds, size, computing = self._answer()
        return seconds, size, computing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--old", required=True)
    parser.add_argument("--new", required=True)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--tokens", default="16,128,512")
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    manifest = open_package(args.package, "cpu").manifest

    def ids(tokens: int, seed: int) -> list[int]:
        return [int(i) for i in prompt_ids(manifest, tokens, seed)]

    with (
        tempfile.TemporaryDirectory() as caches,
        Build(args.old, args.package, args.memory, f"{caches}/old") as old,
        Build(args.new, args.package, args.memory, f"{caches}/new") as new,
    ):
        for seed in range(args.warm):
            for build in (old, new):
                build.prefill(ids(128, seed))
        for tokens in map(int, args.tokens.split(",")):
            pairs = [(old.prefill(p), new.prefill(p)) for p in (ids(tokens, 1000 + n) for n in range(args.rounds))]
            ratios = [before[0] / after[0] for before, after in pairs]
            times, sizes, computing = [[statistics.median(p[side][i] for p in pairs) for side in (0, 1)] for i in range(3)]
            print(
                f"{tokens:5d} tokens: old / new {statistics.median(ratios):.2f} (of {min(ratios):.2f} to {max(ratios):.2f}); "
                f"medians {times[0]:.3f} s, {times[1]:.3f} s; computing {computing[0]:.3f}, {computing[1]:.3f} s; "
                f"{sizes[0] / 2**20:.0f}, {sizes[1] / 2**20:.0f} MiB read",
                flush=True,
            )


if __name__ == "__main__":
    main()
