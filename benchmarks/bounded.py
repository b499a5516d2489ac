"""Is the budget kept? Many runs of varied length inside real memory control groups (root needed).

    python benchmarks/bounded.py PKG --limit 512MiB --runs 100 --tokens 1,4096

Each run is a process of its own in a group whose limit is the budget. Reported: the largest share of the budget that the
process's resident memory and the group's usage (page cache included) ever took, and how many runs failed.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

from cgroup import estream_command, memory_group

from estream.host.sizes import parse_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--limit", default="512MiB")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--tokens", default="1,4096", help="shortest and longest prompt; lengths are drawn between, by ratio")
    args = parser.parse_args()
    limit = parse_bytes(args.limit)
    low, high = map(int, args.tokens.split(","))
    lengths = np.exp(np.random.default_rng(0).uniform(np.log(low), np.log(high), args.runs)).astype(int)
    failed, rss, group_peak, slowest = 0, 0.0, 0.0, 0.0
    for i, tokens in enumerate(lengths):
        with memory_group(limit) as group:
            run = group.run(
                estream_command(
                    "run", args.package, "--tokens", str(tokens), "--seed", str(i), "--memory", args.limit, "--json"
                )
            )
            group_peak = max(group_peak, group.peak_bytes / limit)
        if run.returncode:
            failed += 1
            print(f"{tokens} tokens: status {run.returncode}: {run.stderr.strip()}", flush=True)
            continue
        facts = json.loads(run.stdout)
        rss = max(rss, facts["peak_rss_bytes"] / limit)
        slowest = max(slowest, facts["ttft_s"])
    print(
        f"{args.package.name}: {args.runs} runs of {lengths.min()}..{lengths.max()} tokens in {args.limit}: {failed} failed, "
        f"resident at most {100 * rss:.1f} %, group at most {100 * group_peak:.1f} % of the budget, slowest {slowest:.1f} s"
    )


if __name__ == "__main__":
    main()
