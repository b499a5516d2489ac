"""The reader lanes against fio: the same file, order, request size and depth, direct reads, interleaved.

fio must be installed. It keeps ``lanes`` asynchronous reads in flight, the lanes that many synchronous ones.

python benchmarks/reading.py PKG --lanes 4 --request 2MiB --bytes 2GiB --rounds 5
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

from overlap import read_alone

from estream.engine.options import LoadOptions
from estream.host.sizes import GiB, parse_bytes
from estream.package.package import open_package


def fio(path: Path, lanes: int, request: int, size: int) -> float:
    """Bytes per second."""
    command = ["fio", "--name=read", f"--filename={path}", "--rw=read", "--direct=1", "--ioengine=libaio", "--readonly"]
    command += [f"--bs={request}", f"--iodepth={lanes}", f"--size={size // request * request}", "--output-format=json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(run.stdout)["jobs"][0]["read"]["bw_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--request", default="2MiB")
    parser.add_argument("--bytes", default="2GiB")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    package, request, size = open_package(args.package), parse_bytes(args.request), parse_bytes(args.bytes)
    options = LoadOptions(lanes=args.lanes, request_bytes=request)
    ratios = []
    for _ in range(args.rounds):
        theirs = fio(package.pages_path, args.lanes, request, size)
        ours = size / read_alone(package, size, options)
        ratios.append(ours / theirs)
        print(f"fio {theirs / GiB:.2f} GiB/s, lanes {ours / GiB:.2f} GiB/s, ratio {ratios[-1]:.2f}", flush=True)
    print(f"{args.lanes} lanes of {args.request}: median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
