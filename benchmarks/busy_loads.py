"""How often do loads measure the machine beside a neighbour that keeps a core and the disk busy? At most once.

    python benchmarks/busy_loads.py olmoe.estream --memory 1GiB --loads 10 --tokens 256

Each load is a process of its own; all share a cache that is empty before the first. The neighbour is two processes: one counts,
one reads the package past the page cache. At the end, without it, the machine is measured again into another cache, and
the times measured beside it are given as multiples of those.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from estream.configurator.profile import Profile, read_profile
from estream.configurator.renewal import ratios
from estream.host import busy, system
from estream.host.buffers import BUFFERS
from estream.host.sizes import MiB

LOAD = """
import json, logging, sys, time
import numpy as np
import estream
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("estream").addHandler(handler)
logging.getLogger("estream").setLevel(logging.INFO)
path, memory, tokens, sweeps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
begin = time.perf_counter()
with estream.load(path, memory=memory) as model:
    seconds, ids = time.perf_counter() - begin, np.arange(tokens) % model.package.manifest.config.vocabulary
    stats = [model.prefill(ids).stats for _ in range(sweeps)]
    ratios = [s.ttft_s / s.predicted_ttft_s for s in stats if s.predicted_ttft_s]
print(json.dumps({"load_s": seconds, "measured": sum("measuring this machine" in line for line in lines),
                  "ttft_s": [s.ttft_s for s in stats], "over_predicted": ratios}))
"""


def count_up() -> None:
    while True:
        pass


def read_on(path: Path) -> None:
    handle, buffer, size = system.open_for_reading(path, True), BUFFERS.take(4 * MiB), path.stat().st_size
    while True:
        for offset in range(0, size - len(buffer), len(buffer)):
            system.read_at(handle, memoryview(buffer), offset)


@contextmanager
def neighbour(pages: Path) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count_up, daemon=True), context.Process(target=read_on, args=(pages,), daemon=True)]
    for process in processes:
        process.start()
    time.sleep(2)  # they import first
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def run(code: str, cache: Path, *arguments: object) -> str:
    environment = os.environ | {"ESTREAM_CACHE": str(cache)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def kept_in(cache: Path) -> Profile:
    (path,) = cache.glob("profile-*.json")
    return read_profile(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--loads", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--sweeps", type=int, default=3)
    args = parser.parse_args()
    measured = 0
    with tempfile.TemporaryDirectory() as folder:
        noisy, quiet = Path(folder) / "noisy", Path(folder) / "quiet"
        print(f"before the neighbour, others take {busy.look(args.package, 1.0)}", flush=True)
        with neighbour(args.package / "pages.bin"):
            print(f"with it, {busy.look(args.package, 1.0)}", flush=True)
            for number in range(args.loads):
                row = json.loads(run(LOAD, noisy, args.package, args.memory, args.tokens, args.sweeps))
                measured += row["measured"]
                times = " ".join(f"{t:.2f}" for t in row["ttft_s"])
                over = " ".join(f"{r:.2f}" for r in row["over_predicted"])
                print(
                    f"load {number + 1}: {row['load_s']:.1f} s, measured {row['measured']} times; "
                    f"TTFT {times} s, over predicted {over}",
                    flush=True,
                )
        beside = kept_in(noisy)
        print(f"{args.loads} loads measured {measured} times; the profile says that others took {beside.others or 0:.0%}")
        print(f"without the neighbour, others take {busy.look(args.package, 1.0)}")
        run("import sys, estream; estream.tune(sys.argv[1], memory=sys.argv[2])", quiet, args.package, args.memory)
        alone = kept_in(quiet)
        reading, experts, attention = ratios(alone, beside)
        print(
            f"times measured beside the neighbour over those without it ({alone.others or 0:.0%} others): "
            f"reading {reading:.2f}, experts {experts:.2f}, attention {attention:.2f}"
        )
    sys.exit(measured > 1)


if __name__ == "__main__":
    main()
