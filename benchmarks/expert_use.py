"""Which share of the experts prompts use, against their tokens, by layer.

    python benchmarks/expert_use.py PKG --tokens 16,130,512,1658 --prompts 8

Prompts are those of ``estream bench``. The last layer, which routes the wanted positions alone, is left out. A layer with the
share 1 - (1 - top_k / experts)^tokens routes evenly.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from expert_use import UseRecorder

import estream
from estream.package.topics import prompt_ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--tokens", default="16,130,512,1658")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--memory", default="2GiB")
    args = parser.parse_args()
    lengths = list(map(int, args.tokens.split(",")))
    with estream.load(args.package, memory=args.memory) as model:
        manifest, use = model.package.manifest, UseRecorder(model)
        moe = manifest.config.moe
        chosen = [use.chosen(prompt_ids(manifest, max(lengths), seed)) for seed in range(args.prompts)]
        for tokens in lengths:
            shares = np.array([use.shares(layers, tokens) for layers in chosen])
            even = 1 - (1 - moe.top_k / moe.experts) ** tokens
            by_layer = " ".join(f"{share:.2f}" for share in shares.mean(0))
            print(f"{tokens:5} tokens: {shares.mean():.3f} (even routing: {even:.3f}); by layer {by_layer}")


if __name__ == "__main__":
    main()
