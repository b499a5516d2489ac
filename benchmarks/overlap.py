"""How well reading hides behind computing: the same prefill streamed, read alone, and computed alone, interleaved.

    python benchmarks/overlap.py PKG --tokens 256,1024,4096 --memory 1GiB --rounds 3

For every prompt length each round runs three programs one after another: the streamed prefill on a freshly loaded model
(so that nothing is in the arena), its reads alone (the same number of bytes with the same lanes and request size), and
the prefill with everything in memory. The reported ratio is TTFT over the larger of the two others, medians of rounds.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from estream import _native
from estream.api.model import Model
from estream.engine.options import Configuration, LoadOptions
from estream.host import limits
from estream.host.sizes import format_bytes, parse_bytes
from estream.package.package import Package, open_package
from estream.package.topics import prompt_ids


def read_alone(package: Package, size: int, options: LoadOptions) -> float:
    """Seconds that the lanes need for ``size`` bytes of the package's pages, written over and over the same memory."""
    window, usual = 256 << 20, Configuration()
    lanes, step = options.lanes or usual.lanes, options.request_bytes or usual.request_bytes
    arena = _native.Arena(window)
    arena.populate(0, window)
    reader = _native.Reader([str(package.pages_path)], lanes, step, options.direct_io)
    size = min(size, package.manifest.pages_bytes) // step * step
    begin = time.perf_counter()
    tickets = [
        reader.submit(0, offset, arena.address + offset % window, step, [(0, step, 0, False)])
        for offset in range(0, size, step)
    ]
    for ticket in tickets:
        while reader.wait(ticket, 1.0)[0] == "pending":
            pass
    return time.perf_counter() - begin


def streamed(package: Package, ids: np.ndarray, options: LoadOptions) -> dict:
    with Model(package, options) as model:
        return model.prefill(ids).stats.to_json()


def measure(package: Package, tokens: int, options: LoadOptions, resident: Model, rounds: int) -> dict:
    ids = prompt_ids(package.manifest, tokens, seed=tokens)
    resident.prefill(ids)
    rows = []
    for _ in range(rounds):
        stats = streamed(package, ids, options)
        same = LoadOptions(lanes=stats["config"]["lanes"], request_bytes=stats["config"]["request_bytes"])
        reading = read_alone(package, stats["bytes_read"], same)
        computing = resident.prefill(ids).stats.ttft_s
        rows.append((stats, reading, computing))
    ttft = statistics.median(r[0]["ttft_s"] for r in rows)
    reading = statistics.median(r[1] for r in rows)
    computing = statistics.median(r[2] for r in rows)
    ratios = [r[0]["ttft_s"] / max(r[1], r[2]) for r in rows]
    return {
        "tokens": tokens,
        "ttft_s": ttft,
        "read_alone_s": reading,
        "compute_alone_s": computing,
        "ratio": statistics.median(ratios),
        "ratio_to_reading": statistics.median(r[0]["ttft_s"] / r[1] for r in rows),
        "stall_s": statistics.median(r[0]["stall_s"] for r in rows),
        "bytes_read": rows[0][0]["bytes_read"],
        "peak_rss_bytes": max(r[0]["peak_rss_bytes"] for r in rows),
        "direct_io": rows[0][0]["direct_io"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--tokens", default="256,1024,4096")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    args = parser.parse_args()
    package = open_package(args.package, "cpu")
    # The resident model below is in this process too, so its memory is added to the streamed model's budget.
    rows = []
    with Model(package, LoadOptions()) as resident:
        for tokens in map(int, args.tokens.split(",")):
            resident.prefill([0] * tokens)
            options = LoadOptions(memory=parse_bytes(args.memory) + limits.resident_bytes() - BASE)
            rows.append(measure(package, tokens, options, resident, args.rounds))
            r = rows[-1]
            print(
                f"{r['tokens']:5d} tokens: TTFT {r['ttft_s']:.3f} s, reads alone {r['read_alone_s']:.3f} s "
                f"({format_bytes(r['bytes_read'] / r['read_alone_s'])}/s), computing alone {r['compute_alone_s']:.3f} s, "
                f"TTFT / larger {r['ratio']:.2f}, TTFT / reads {r['ratio_to_reading']:.2f}, stall {r['stall_s']:.3f} s",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


BASE = limits.resident_bytes()

if __name__ == "__main__":
    main()
