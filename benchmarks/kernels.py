"""How near the kernels come to what the processor can do.

    python benchmarks/kernels.py --threads 2 --rounds 5

Every product is timed in turns with a bare loop of the densest 8-bit vector instruction (and attention with the densest one
of its type), on the same threads and in the same run; the best of the rounds of each counts. Few tokens are limited by memory:
there the weights' bytes are set against what the same threads reach by reading the same weights only (their checksum). Where
torch is installed, its bfloat16 product is timed too. ``ESTREAM_KERNELS`` chooses the variant.
"""

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from estream import _native

# hidden and intermediate size of one expert
SHAPES = {"OLMoE": (2048, 1024), "Qwen1.5-MoE": (2048, 1408), "DeepSeek-V2-Lite": (2048, 1408)}
GROUPS = (128, 64, 32)
TOKENS = (128, 32)
FEW_TOKENS = (1, 2, 4)
EXPERTS = 16  # more weights than the caches hold


class Buffers(NamedTuple):
    """What one expert call needs besides its weights."""

    x: _native.Quantized
    tokens: np.ndarray
    weights: np.ndarray
    hidden: np.ndarray
    quantized: _native.Quantized
    y: np.ndarray


def quantized(rows: int, columns: int, group: int) -> _native.Quantized:
    return _native.Quantized(
        np.zeros((rows, columns), np.int8),
        np.zeros((rows, columns // group), np.float32),
        np.zeros((rows, columns // group), np.int32),
    )


class Experts:
    """Several experts of one shape in an arena, with random codes and scales near 1 / 128."""

    def __init__(self, device: _native.CpuDevice, hidden: int, width: int, bits: int, group: int) -> None:
        self.device, self.hidden, self.width, self.group = device, hidden, -(-width // group) * group, group
        gate_up = _native.Matrix(2 * width, hidden, bits, group)
        down = _native.Matrix(hidden, self.width, bits, group)
        self.expert = _native.Expert(gate_up, down, gate_up.bytes)
        self.bytes = -(-(gate_up.bytes + down.bytes) // 4096) * 4096
        self.arena = _native.Arena(EXPERTS * self.bytes)
        codes = np.random.default_rng(0).integers(0, 256, gate_up.bytes + down.bytes, dtype=np.uint8)
        blocks = codes[: codes.size // (4 * bits * group + 64) * (4 * bits * group + 64)].reshape(-1, 4 * bits * group + 64)
        blocks[:, -64:] = np.frombuffer(np.full(32, 1 / 128, np.float16).tobytes(), np.uint8)
        for i in range(EXPERTS):
            self.arena.bytes()[i * self.bytes : i * self.bytes + codes.size] = codes

    def buffers(self, tokens: int) -> Buffers:
        x = quantized(tokens, self.hidden, self.group)
        rows = np.random.default_rng(1).standard_normal((tokens, self.hidden), np.float32)
        self.device.quantize(rows, self.hidden, x)
        order = np.arange(tokens, dtype=np.int32)
        hidden = np.zeros((tokens, self.width), np.float32)
        y = np.zeros((tokens, self.hidden), np.float32)
        return Buffers(x, order, np.ones(tokens, np.float32), hidden, quantized(tokens, self.width, self.group), y)

    def run(self, b: Buffers) -> None:
        for i in range(EXPERTS):
            address = self.arena.address + i * self.bytes
            self.device.expert(self.expert, address, b.x, b.tokens, b.tokens, b.weights, b.hidden, b.quantized, b.y)

    def read(self, pool: ThreadPoolExecutor) -> None:
        parts = np.array_split(self.arena.bytes(), self.device.threads)
        list(pool.map(_native.checksum, parts))


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def peak(device: _native.CpuDevice, kind: str) -> float:
    """GOPS of one turn of about 30 ms."""
    rounds = 1 << 20 if "tiles" not in kind else 1 << 16
    begin = time.perf_counter()
    done: int = device.peak(kind, rounds)
    return done / (time.perf_counter() - begin) / 1e9


def experts(device: _native.CpuDevice, name: str, group: int, bits: int, rounds: int) -> list[dict]:
    hidden, width = SHAPES[name]
    work = Experts(device, hidden, width, bits, group)
    rows = []
    with ThreadPoolExecutor(device.threads) as pool:
        for tokens in TOKENS + FEW_TOKENS:
            few = tokens in FEW_TOKENS
            run = partial(work.run, work.buffers(tokens))
            run()
            best, limit = float("inf"), 0.0
            for _ in range(rounds):
                best = min(best, seconds(run), seconds(run))
                now = EXPERTS * work.bytes / seconds(lambda: work.read(pool)) / 1e9 if few else peak(device, "int8")
                limit = max(limit, now)
            speed = EXPERTS * (work.bytes if few else 6 * hidden * width * tokens) / best / 1e9
            unit = "GB/s" if few else "GOPS"
            row = {"shape": name, "bits": bits, "group": group, "tokens": tokens, "speed": speed, "limit": limit, "unit": unit}
            rows.append(row | {"share": speed / limit})
            print(
                f"{name:17} {bits} bits g{group:<4} {tokens:4} tokens {speed:7.1f} {unit} of {limit:7.1f}: {speed / limit:6.1%}"
            )
    return rows


def attention(device: _native.CpuDevice, tokens: int, heads: int, dim: int, rounds: int) -> dict:
    """Causal attention over one sequence, against the loop of the type that its products use."""
    kind = next(k for k in ("bfloat16", "float32") if device.peak(k, 1) and (device.kv_element_bytes == 2 or k == "float32"))
    shape = _native.Attention(heads, heads, dim, dim, dim**-0.5)
    x = np.random.default_rng(0).standard_normal((tokens, heads * dim), np.float32)
    keys = np.zeros(tokens * heads * dim * device.kv_element_bytes, np.uint8)
    values, out = np.zeros_like(keys), np.zeros_like(x)
    rows, blocks = np.arange(tokens, dtype=np.int32), np.arange(0, tokens, _native.KEY_BLOCK, dtype=np.int32)
    device.store_key_values(shape, x, x, rows, rows, keys, values, tokens)
    places = _native.QueryPlaces(rows, np.zeros(tokens, np.int32), blocks)
    best, limit, tiles = float("inf"), 0.0, 0.0
    for _ in range(rounds):
        best = min(best, seconds(lambda: device.attention(shape, x, places, keys, values, tokens, out)))
        limit = max(limit, peak(device, kind))
        tiles = max(tiles, peak(device, "bfloat16 tiles"))
    speed = 2 * tokens * (tokens + 1) * heads * dim / best / 1e9
    print(f"attention {tokens} tokens, {heads} heads of {dim}: {speed:.0f} GFLOPS of {limit:.0f} ({kind}): {speed / limit:.1%}")
    return {"tokens": tokens, "speed": speed, "limit": limit, "kind": kind, "share": speed / limit, "tiles": tiles}


def torch_product(tokens: int, threads: int, rounds: int) -> float | None:
    """GOPS of torch's bfloat16 product of OLMoE's gate and up, or None without torch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    x, w = torch.randn(tokens, 2048, dtype=torch.bfloat16), torch.randn(2048, 2048, dtype=torch.bfloat16)
    best = min(seconds(lambda: [x @ w for _ in range(16)]) for _ in range(rounds))
    return 16 * 2 * tokens * 2048 * 2048 / best / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="comma-separated names")
    parser.add_argument("--groups", default=",".join(map(str, GROUPS)))
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = _native.CpuDevice(args.threads)
    kinds = ("int8", "int8 tiles", "bfloat16", "bfloat16 tiles", "float32")
    peaks = {kind: max(peak(device, kind) for _ in range(args.rounds)) for kind in kinds}
    print(f"{device.variant}, {args.threads} threads; bare loops: " + ", ".join(f"{k} {v:.0f} GOPS" for k, v in peaks.items()))
    rows: list[dict] = []
    for name in args.shapes.split(","):
        for group in map(int, args.groups.split(",")):
            rows += experts(device, name, group, args.bits, args.rounds)
    long = attention(device, 4096, 16, 128, args.rounds)
    torch = {tokens: torch_product(tokens, args.threads, args.rounds) for tokens in TOKENS}
    print(
        "torch bfloat16 product: "
        + ", ".join(f"{t} tokens {s:.0f} GOPS" if s else "torch not installed" for t, s in torch.items())
    )
    if args.json:
        result = {"variant": device.variant, "threads": args.threads, "peaks": peaks, "experts": rows, "attention": long}
        args.json.write_text(json.dumps(result | {"torch": torch}, indent=1) + "\n")


if __name__ == "__main__":
    main()
