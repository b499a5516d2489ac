"""What many callers get through a scheduler, against one sweep's reading and all computing, interleaved.

    python benchmarks/scheduled.py PKG --requests 32 --tokens 128 --memory 1GiB --rounds 3

Each round has so many threads ask for one prompt each, at once, of a scheduler over the streamed model ("burst"); then twice
each, the second as soon as the first is answered ("steady"). Beside that it reads the bytes of one sweep alone, and computes
all prompts in one sweep with everything in memory. Printed: the share of the throughput that the larger of both would give.
"""

import argparse
import statistics
import threading
import time
from pathlib import Path

import numpy as np
from overlap import BASE, read_alone

import estream
from estream.api.model import Model
from estream.engine.options import LoadOptions
from estream.host import limits
from estream.host.sizes import parse_bytes
from estream.package.package import open_package


def ask(model: Model, prompts: list[np.ndarray], times: int) -> tuple[float, list[int]]:
    """Seconds until all are answered, and how many prompts each sweep had."""
    sweeps: dict[float, int] = {}
    start = threading.Barrier(len(prompts) + 1)

    def work(prompt: np.ndarray) -> None:
        start.wait()
        for _ in range(times):
            (reading,) = scheduler.read([estream.Request(prompt)])
            sweeps[reading.stats.ttft_s] = reading.stats.prompts

    with estream.Scheduler(model) as scheduler:
        callers = [threading.Thread(target=work, args=(prompt,)) for prompt in prompts]
        for caller in callers:
            caller.start()
        start.wait()
        begin = time.perf_counter()
        for caller in callers:
            caller.join()
        return time.perf_counter() - begin, list(sweeps.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    package = open_package(args.package, "cpu")
    vocabulary = package.manifest.config.vocabulary
    prompts = list(np.random.default_rng(0).integers(0, vocabulary, (args.requests, args.tokens)))
    found: dict[str, list[float]] = {"burst": [], "steady": []}
    with Model(package, LoadOptions(memory=2 * package.bytes + (2 << 30))) as resident:
        resident.prefill_batch(prompts)
        # The resident model is in this process too, so its memory is added to the streamed model's budget.
        budget = parse_bytes(args.memory) + limits.resident_bytes() - BASE
        with Model(package, LoadOptions(memory=budget)) as model:
            one = model.prefill_batch(prompts)[0].stats
            lanes = LoadOptions(lanes=one.config["lanes"], request_bytes=one.config["request_bytes"])
            for _ in range(args.rounds):
                for name, times in (("burst", 1), ("steady", 2)):
                    reading = read_alone(package, one.bytes_read, lanes)
                    computing = resident.prefill_batch(prompts)[0].stats.ttft_s
                    seconds, sweeps = ask(model, prompts, times)
                    computing = (computing + resident.prefill_batch(prompts)[0].stats.ttft_s) / 2
                    found[name].append(times * max(reading, computing) / seconds)
                    print(
                        f"{name:6}: {times * args.requests} requests in {seconds:.2f} s, sweeps of {sweeps}; reads alone "
                        f"{reading:.2f} s, computing alone {computing:.2f} s: {found[name][-1]:.2f} of the bound",
                        flush=True,
                    )
    print(", ".join(f"{name} {statistics.median(ratios):.2f}" for name, ratios in found.items()) + " (medians)")


if __name__ == "__main__":
    main()
