"""Prefill of random weights of one shape beside llama.cpp or ik_llama.cpp, everything in memory, in turns in one run.

    python benchmarks/peers.py PKG FILE.gguf --tokens 1024 --threads 2 --rounds 3
    python benchmarks/peers.py PKG FILE.gguf --python OTHER/bin/python --module ik_llama_cpp._ctypes_api

PKG comes from ``estream synth SHAPE``, FILE.gguf holds the same shape with Q4_0 weights. The peer runs in the interpreter that
has its Python package, in which the module named has llama.cpp's own functions; each turn starts a new process for either
side, reads one prompt that does not count, then times one.
The peer's figure is the time of its decoding call for one batch of all tokens with the logits of the last alone.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

_PEER = """
import importlib, json, random, sys, time
module, path, tokens, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
low = importlib.import_module(module)
low.llama_backend_init()
options = low.llama_model_default_params()
options.n_gpu_layers = 0
if hasattr(options, "repack_tensors"):
    options.repack_tensors, options.use_mmap = True, False
load = getattr(low, "llama_model_load_from_file", None) or low.llama_load_model_from_file
model = load(path.encode(), options)
make = getattr(low, "llama_init_from_model", None) or low.llama_new_context_with_model
for turn in range(2):
    options = low.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = tokens
    options.n_threads = options.n_threads_batch = threads
    context = make(model, options)
    batch = low.llama_batch_init(tokens, 0, 1)
    batch.n_tokens = tokens
    for i in range(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = random.randrange(30000), i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, i == tokens - 1
    begin = time.perf_counter()
    assert low.llama_decode(context, batch) == 0
    seconds = time.perf_counter() - begin
    low.llama_batch_free(batch)
    low.llama_free(context)
print(json.dumps(seconds))
"""

_OURS = """
import json, sys
import numpy as np
import estream
path, tokens, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with estream.load(path, threads=threads) as model:
    for turn in range(2):
        stats = model.prefill(np.random.default_rng(turn).integers(0, 30000, tokens)).stats
print(json.dumps(stats.ttft_s))
"""


def seconds_of(python: str, program: str, *arguments: str) -> float:
    done = subprocess.run([python, "-c", program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{arguments[0]}: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--tokens", default="1024")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the peer's package")
    parser.add_argument("--module", default="llama_cpp", help="the peer's package")
    args = parser.parse_args()
    for tokens in args.tokens.split(","):
        ours, theirs = [], []
        for _ in range(args.rounds):
            theirs.append(seconds_of(args.python, _PEER, args.module, str(args.gguf), tokens, str(args.threads)))
            ours.append(seconds_of(sys.executable, _OURS, str(args.package), tokens, str(args.threads)))
        ratio = statistics.median(t / o for o, t in zip(ours, theirs, strict=True))
        speeds = [int(tokens) / statistics.median(times) for times in (ours, theirs)]
        print(
            f"pp{tokens}: estream {speeds[0]:.0f} t/s, {args.module} {speeds[1]:.0f} t/s, ratio {ratio:.2f} (median of rounds)"
        )


if __name__ == "__main__":
    main()
