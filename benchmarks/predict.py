"""How true the configurator's predictions are: predicted over measured TTFT, package by package, length by length.

    python benchmarks/predict.py olmoe.estream mixtral.estream --tokens 128,512,1024,4096 --budgets 0,0.3,1 --rounds 3

A budget of 0 is the floor of the prompt, 1 is everything in memory, others lie between on a log scale. The machine is
measured anew for each package. Every round reads a stretch of the package alone, then runs a freshly loaded model; the
prediction takes the storage as fast as that stretch was, since disks of shared machines drift.
"""

import argparse
import json
import statistics
from pathlib import Path

from msgspec.structs import replace
from overlap import read_alone

from estream.api.model import Model
from estream.api.plan import Planner, planner, tune
from estream.configurator.simulate import Simulator
from estream.engine.batch import BatchShape
from estream.engine.options import Configuration, LoadOptions
from estream.host.sizes import GiB, MiB, format_bytes
from estream.package.package import open_package
from estream.package.topics import prompt_ids

SAMPLE = 768 * MiB


def budget_of(ready: Planner, tokens: int, share: float) -> int:
    low = ready.memory(1 << 50).floor(BatchShape.of_prompt(tokens)).bytes + 8 * MiB
    everything = sum(p.padded_bytes for p in ready.package.manifest.tape)
    high = int((low + everything) * 1.05) + 64 * MiB
    return round(low * (high / low) ** share)


def measure(path: Path, tokens: int, share: float, rounds: int) -> dict:
    ready = planner(path, LoadOptions())
    budget = budget_of(ready, tokens, share)
    package = open_package(path)
    ids = prompt_ids(package.manifest, tokens, seed=tokens)
    ratios, ttfts, rates = [], [], []
    for _ in range(rounds):
        with Model(package, LoadOptions(budget)) as model:
            c: Configuration = model._setup.configuration
            options = LoadOptions(lanes=c.lanes, request_bytes=c.request_bytes)
            before = SAMPLE / read_alone(package, SAMPLE, options)
            stats = model.prefill(ids).stats
            after = SAMPLE / read_alone(package, SAMPLE, options)
            now = (before + after) / 2
            storage = ready.profile.storage
            scaled = storage.scaled(now / storage.rate(c.lanes, c.request_bytes))
            profile = replace(ready.profile, storage=scaled)
            simulator = Simulator(model._memory, profile)
            predicted = simulator.estimate(c, BatchShape.of_prompt(tokens))
        ratios.append(predicted.ttft_s / stats.ttft_s)
        ttfts.append(stats.ttft_s)
        rates.append(now)
    return {
        "package": path.name,
        "tokens": tokens,
        "budget_bytes": budget,
        "ttft_s": statistics.median(ttfts),
        "ratio": statistics.median(ratios),
        "limit": predicted.limit,
        "rate": statistics.median(rates),
        "bytes_read": stats.bytes_read,
        "predicted_bytes": predicted.bytes_read,
        "peak_bytes": stats.peak_rss_bytes,
        "compute_s": stats.compute_s,
        "predicted_compute_s": predicted.compute_s,
        "configuration": c.to_json(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path, nargs="+")
    parser.add_argument("--tokens", default="128,512,1024,4096")
    parser.add_argument("--budgets", default="0,0.3,1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for path in args.packages:
        tune(path, force=True)
        for tokens in map(int, args.tokens.split(",")):
            for share in map(float, args.budgets.split(",")):
                row = measure(path, tokens, share, args.rounds)
                rows.append(row)
                print(
                    f"{row['package']:20s} {tokens:5d} tokens, {format_bytes(row['budget_bytes']):>9s}: "
                    f"TTFT {row['ttft_s']:7.3f} s, predicted x{row['ratio']:.3f} ({row['limit']}), "
                    f"computing {row['compute_s']:.3f} against {row['predicted_compute_s']:.3f} s, "
                    f"disk {row['rate'] / GiB:.2f} GiB/s",
                    flush=True,
                )
    errors = sorted(abs(row["ratio"] - 1) for row in rows)
    print(
        f"{len(rows)} settings: |predicted / measured - 1| median {statistics.median(errors):.1%}, "
        f"90th percentile {errors[int(0.9 * (len(errors) - 1))]:.1%}"
    )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
