"""What log-probabilities of all positions take beyond a plain prefill: memory and time, each in a process of its own.

python benchmarks/reduced_head.py PKG --tokens 4096 --memory 4GiB
"""

import argparse
import json
import subprocess
import sys

ONE = """
import json, sys
import numpy as np
import estream
from estream.engine.wanted import ALL, Likeliest, LogProbabilities, Request
path, tokens, memory, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
with estream.load(path, memory=memory) as model:
    ids = np.random.default_rng(0).integers(0, model.package.manifest.config.vocabulary, tokens)
    wanted = {
        "last": Request(ids),
        "likeliest": Request(ids, ALL, Likeliest(20)),
        "log-probabilities": Request(ids, ALL, LogProbabilities(np.roll(ids, -1)[:, None])),
    }
    stats = model.read([wanted[kind]])[0].stats
    seconds = model.device_seconds()
print(json.dumps({"peak": stats.peak_rss_bytes, "compute_s": stats.compute_s, "seconds": seconds}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--memory", default="4GiB")
    args = parser.parse_args()
    plain = None
    for kind in ("last", "log-probabilities", "likeliest"):
        command = [sys.executable, "-c", ONE, args.package, str(args.tokens), args.memory, kind]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        plain = plain or found
        print(
            f"{kind}: peak {found['peak'] / 2**20:.0f} MiB ({(found['peak'] - plain['peak']) / 2**20:+.0f}), compute "
            f"{found['compute_s']:.2f} s, products {found['seconds']['products']:.2f} s, reductions "
            f"{found['seconds']['reductions']:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
