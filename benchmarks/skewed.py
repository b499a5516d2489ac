"""Bytes and times of prompts on a model that uses its experts unevenly, against what their routing needed.

For each prompt length: the first prompt on a model that knows nothing, then some after prompts of warming. "needed" are the
pages that the routing used and that were not in the arena; "reading" reads as many bytes alone with the same lanes and
requests; "computing" is the time inside the device.

    python benchmarks/skewed.py PKG --memory 1GiB --tokens 16,64,128,512,2048 --warm 20
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
from overlap import read_alone

from estream.api.model import Model
from estream.configurator.use_store import path_of
from estream.engine.options import LoadOptions
from estream.engine.sweep import SweepResult
from estream.engine.sweep_plan import SweepPlan
from estream.host.sizes import MiB, parse_bytes
from estream.package.package import Package, open_package
from estream.package.topics import prompt_ids


class Watched(Model):
    """Remembers what the last sweep's routing needed."""

    def _run(self, batch, plan: SweepPlan, look=None) -> SweepResult:
        result = super()._run(batch, plan, look)
        used = result.counts > 0
        self.needed = sum(
            page.padded_bytes
            for page in self.package.manifest.tape
            if page.index not in plan.resident and (page.spec.kind != "expert" or used[page.spec.layer, page.spec.expert])
        )
        self.share = float(used[:-1].mean())
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--tokens", default="16,64,128,512,2048")
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--warm-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    package = open_package(args.package, "cpu")
    lengths = [int(n) for n in args.tokens.split(",")]
    options = LoadOptions(parse_bytes(args.memory))
    with tempfile.TemporaryDirectory() as cache:
        # What the machine has learned of the package stays as it is.
        os.environ["ESTREAM_CACHE"] = cache
        for tokens in lengths:
            path_of(package).unlink(missing_ok=True)
            with Watched(package, options) as model:
                _measure(model, package, tokens, 1000, "first")
        path_of(package).unlink(missing_ok=True)
        with Watched(package, options) as model:
            for seed in range(args.warm):
                model.prefill(prompt_ids(package.manifest, args.warm_tokens, seed))
            for tokens in lengths:
                for number in range(args.rounds):
                    _measure(model, package, tokens, 2000 + 17 * number + tokens, "warm")


def _measure(model: Watched, package: Package, tokens: int, seed: int, name: str) -> None:
    ids = prompt_ids(package.manifest, tokens, seed)
    stats = model.prefill(ids).stats
    config = stats.config
    same = LoadOptions(lanes=config["lanes"], request_bytes=config["request_bytes"])
    reading = statistics.median(read_alone(package, model.needed, same) for _ in range(2))
    row = np.array([stats.ttft_s, stats.compute_s, stats.stall_s, reading])
    best = max(reading, stats.compute_s)
    print(
        f"{name} {tokens:5d} tokens: used {model.share:.2f}, read {stats.bytes_read / MiB:6.0f} MiB = "
        f"{stats.bytes_read / max(1, model.needed):.3f} x needed, TTFT {row[0]:.3f} s = {row[0] / best:.2f} x max(reading "
        f"{row[3]:.3f}, computing {row[1]:.3f}), stall {row[2]:.3f}, named {stats.prediction}",
        flush=True,
    )


if __name__ == "__main__":
    main()
