"""More memory must not make a prompt slower: times and bytes over budgets from the floor to twice the model.

Each run is a process of its own that loads the package, reads a prompt on the fresh model, and reads it again. Budgets and
lengths are interleaved. Prints the medians, the largest ratio to any smaller budget, and whether pages were read twice where
the budget has room for the model.

    python benchmarks/budgets.py PKG --steps 8 --tokens 1,16,64,256,1024 --rounds 7
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from statistics import median

from estream.api.model import Model
from estream.api.plan import planner
from estream.engine.batch import BatchShape
from estream.engine.options import LoadOptions
from estream.host.sizes import GiB, MiB, format_bytes
from estream.package.package import open_package
from estream.package.topics import prompt_ids

#: Times below this are too short to compare: bytes are.
_SHORT_S = 0.2


def run_one(path: Path, budget: int, tokens: int, prompts: int) -> None:
    """In a process of its own: a fresh sweep, the same again, then other prompts."""
    package = open_package(path, "cpu")
    with Model(package, LoadOptions(budget)) as model:
        ids = prompt_ids(package.manifest, tokens, tokens)
        rows = [model.prefill(ids).stats for _ in range(2)]
        rows += [model.prefill(prompt_ids(package.manifest, tokens, 100 + n)).stats for n in range(prompts)]
        rows.append(model.prefill(ids).stats)
    print(json.dumps([[s.ttft_s, s.bytes_read - s.embedding_bytes, s.compute_s, s.config["pinned_pages"]] for s in rows]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tokens", default="1,16,64,256,1024")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=0, help="other prompts between, in each run")
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_one(args.package, *args.one, args.prompts)
        return
    lengths = [int(n) for n in args.tokens.split(",")]
    found: dict[tuple[int, int], list[list[list[float]]]] = defaultdict(list)
    for _ in range(args.rounds):
        for budget, tokens in product(_budgets(args.package, args.steps, max(lengths)), lengths):
            command = [sys.executable, __file__, str(args.package), "--prompts", str(args.prompts), "--one"]
            run = subprocess.run([*command, str(budget), str(tokens)], capture_output=True, text=True, check=True)
            found[budget, tokens].append(json.loads(run.stdout))
    _report(open_package(args.package, "cpu").manifest.pages_bytes, found)


def _budgets(path: Path, steps: int, longest: int) -> list[int]:
    ready = planner(path, LoadOptions(GiB))
    floor = ready.memory(GiB).floor(BatchShape.of_prompt(longest)).bytes + 16 * MiB
    most = 2 * ready.package.manifest.pages_bytes
    return [round(floor * (most / floor) ** (step / (steps - 1))) for step in range(steps)]


def _report(model_bytes: int, found: dict[tuple[int, int], list[list[list[float]]]]) -> None:
    worst: dict[tuple[int, str], tuple[float, int]] = {}
    for (budget, tokens), runs in sorted(found.items()):
        cells = []
        for which, index in (("fresh", 0), ("again", 1), ("last", -1)):
            seconds = median(run[index][0] for run in runs)
            size = median(run[index][1] for run in runs)
            value, unit = (seconds, "s") if seconds >= _SHORT_S else (size / GiB, "GiB")
            least = min((v for (t, w), (v, b) in worst.items() if (t, w) == (tokens, which + unit)), default=value)
            worst[tokens, which + unit] = (min(least, value), budget)
            ratio = value / least if least else (1.0 if not value else float("inf"))
            cells.append(f"{which} {seconds:.3f} s, {size / MiB:.0f} MiB, {ratio:.2f} x of less memory")
        read = median(sum(row[1] for row in run) for run in runs)
        twice = read > model_bytes
        note = f"; in all {read / model_bytes:.2f} x the model" + (
            " READ TWICE" if twice and budget >= 1.3 * model_bytes else ""
        )
        print(f"{format_bytes(budget):>9} {tokens:5d} tokens: {'; '.join(cells)}{note}")


if __name__ == "__main__":
    main()
