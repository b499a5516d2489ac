"""Two builds of estream beside each other: TTFT of the same prompts, interleaved, each run in a process of its own.

    python benchmarks/overlap_pair.py PKG --old PYTHON --new PYTHON --tokens 16,256 --rounds 7

OLD and NEW are the interpreters of two virtual environments with one build each. Every run loads the package twice: in 1 GiB,
where one prompt of each length is streamed, and with everything in memory, where each is read again. Both builds get the same
lanes and request size, and nothing is measured beforehand. Prints new / old: the median of the pairwise ratios, and of each.
"""

import argparse
import json
import statistics
import subprocess

PROGRAM = """
import json, sys
import numpy as np
from estream.configurator import configure
from estream.engine.options import LoadOptions
from estream.package.package import open_package
try:
    from estream.api.model import Model
except ImportError:
    from estream.engine.model import Model
configure.PROBED_BYTES = 1 << 60
package = open_package(sys.argv[1])
vocabulary, found = package.manifest.config.vocabulary, {}
prompts = {n: np.random.default_rng(n).integers(0, vocabulary, n) for n in map(int, sys.argv[2].split(","))}
with Model(package, LoadOptions(1 << 30, lanes=4, request_bytes=2 << 20)) as model:
    for n, ids in prompts.items():
        found[f"streamed {n}"] = model.prefill(ids).stats.ttft_s
with Model(package, LoadOptions(2 * package.bytes + (1 << 30))) as model:
    for n, ids in prompts.items():
        model.prefill(ids)
        found[f"in memory {n}"] = min(model.prefill(ids).stats.ttft_s for _ in range(3))
print(json.dumps(found))
"""


def run(python: str, package: str, tokens: str) -> dict[str, float]:
    command = [python, "-c", PROGRAM, package, tokens]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--old", required=True)
    parser.add_argument("--new", required=True)
    parser.add_argument("--tokens", default="16,256")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    pairs = []
    for _ in range(args.rounds):
        pairs.append((run(args.old, args.package, args.tokens), run(args.new, args.package, args.tokens)))
        print(".", end="", flush=True)
    print()
    for name in pairs[0][0]:
        old, new = ([pair[side][name] for pair in pairs] for side in (0, 1))
        ratios = [b / a for a, b in zip(old, new, strict=True)]
        print(
            f"{name:16} new / old {statistics.median(ratios):.3f} (of {min(ratios):.3f} to {max(ratios):.3f}); "
            f"medians {statistics.median(old):.3f} s, {statistics.median(new):.3f} s"
        )


if __name__ == "__main__":
    main()
