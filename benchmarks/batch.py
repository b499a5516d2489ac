"""What several prompts in one sweep are worth: prompts one by one against all in one sweep, interleaved.

python benchmarks/batch.py PKG --prompts 16 --tokens 64 --memory 1GiB --rounds 3
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

import estream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with estream.load(args.package, memory=args.memory) as model:
        vocabulary = model.package.manifest.config.vocabulary
        prompts = np.random.default_rng(0).integers(0, vocabulary, (args.prompts, args.tokens))
        ratios = []
        for _ in range(args.rounds):
            begin = time.perf_counter()
            singles = [model.prefill(prompt) for prompt in prompts]
            single_s = time.perf_counter() - begin
            begin = time.perf_counter()
            together = model.prefill_batch(list(prompts))
            batch_s = time.perf_counter() - begin
            same = all(np.array_equal(a.logits, b.logits) for a, b in zip(singles, together, strict=True))
            ratios.append(single_s / batch_s)
            print(
                f"{args.prompts} prompts of {args.tokens} tokens: one by one {single_s:.2f} s, in one sweep {batch_s:.2f} s, "
                f"{ratios[-1]:.1f} x, same bits: {same}",
                flush=True,
            )
    print(f"median {statistics.median(ratios):.1f} x")


if __name__ == "__main__":
    main()
