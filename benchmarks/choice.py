"""Is the chosen configuration near the best? A grid is measured, not simulated, beside the chosen one and a naive one.

    python benchmarks/choice.py olmoe.estream --settings 128:1GiB,1024:512MiB --repeat 3

Every configuration of the grid runs once on a freshly loaded model; the best few, the chosen and the naive one (one lane,
one expert a request, the smallest ring, nothing read ahead of the routing) then run again, interleaved.
"""

import argparse
import itertools
import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np

from estream.api.model import Model
from estream.api.plan import tune
from estream.engine.options import LoadOptions
from estream.host.sizes import KiB, MiB, format_bytes, parse_bytes
from estream.package.package import Package, open_package
from estream.package.topics import prompt_ids

LANES = (1, 2, 4, 8)
REQUESTS = (512 * KiB, MiB, 2 * MiB, 4 * MiB)
RINGS = (48 * MiB, 128 * MiB, 384 * MiB)
FINALISTS = 3


def run(package: Package, ids: np.ndarray, options: LoadOptions, share: float | None = None) -> float:
    with Model(package, options) as model:
        if share is not None:
            configuration = replace(model._setup.configuration, read_ahead_chance=share)
            model._setup = replace(model._setup, configuration=configuration)
        return model.prefill(ids).stats.ttft_s


def measure(package: Package, tokens: int, budget: int, repeat: int) -> dict:
    ids = prompt_ids(package.manifest, tokens, seed=tokens)
    page = max(p.padded_bytes for p in package.manifest.tape if p.spec.kind == "expert")
    grid = [
        LoadOptions(budget, lanes=n, request_bytes=r, ring_bytes=ring, pinned_bytes=0)
        for n, r, ring in itertools.product(LANES, REQUESTS, RINGS)
    ]
    first = sorted((run(package, ids, options), i) for i, options in enumerate(grid))
    best = [grid[i] for _, i in first[:FINALISTS]]
    naive = LoadOptions(budget, lanes=1, request_bytes=page, ring_bytes=0, pinned_bytes=0)
    chosen, naives, finals = [], [], [[] for _ in best]
    for _ in range(repeat):
        chosen.append(run(package, ids, LoadOptions(budget)))
        naives.append(run(package, ids, naive, share=2.0))
        for times, options in zip(finals, best, strict=True):
            times.append(run(package, ids, options))
    top = min(statistics.median(times) for times in finals)
    mine = statistics.median(chosen)
    return {
        "package": package.path.name,
        "tokens": tokens,
        "budget_bytes": budget,
        "grid": len(grid),
        "chosen_s": mine,
        "best_s": top,
        "naive_s": statistics.median(naives),
        "chosen_over_best": mine / top,
        "naive_over_chosen": statistics.median(naives) / mine,
        "best": best[0].given,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path, nargs="+")
    parser.add_argument("--settings", default="16:1GiB,128:1GiB,512:512MiB,1024:1GiB")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for path in args.packages:
        tune(path, force=True)
        for setting in args.settings.split(","):
            tokens, budget = setting.split(":")
            row = measure(open_package(path), int(tokens), parse_bytes(budget), args.repeat)
            rows.append(row)
            print(
                f"{row['package']:20s} {row['tokens']:5d} tokens, {format_bytes(row['budget_bytes']):>9s}: chosen "
                f"{row['chosen_s']:.3f} s, best of {row['grid']} {row['best_s']:.3f} s ({row['best']}), "
                f"chosen / best {row['chosen_over_best']:.3f}, naive / chosen {row['naive_over_chosen']:.2f}",
                flush=True,
            )
    near = sum(row["chosen_over_best"] <= 1.1 for row in rows)
    print(
        f"within 10 % of the best in {near} of {len(rows)} settings; "
        f"naive / chosen median {statistics.median(row['naive_over_chosen'] for row in rows):.2f}"
    )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
