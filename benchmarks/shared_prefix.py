"""What sharing a beginning is worth: documents behind one instruction in one sweep, against as many tokens with nothing in
common, and against all prompts computed whole. Interleaved; medians of ratios in one run.

python benchmarks/shared_prefix.py PKG --documents 50 --tokens 150 --instruction 400 --memory 1GiB --rounds 3
"""

import argparse
import statistics
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

import estream
from estream.api.model import Model
from estream.api.result import Reading
from estream.engine.wanted import Likeliest, Request

WANTED = Likeliest(1)


def read(model: Model, prompts: list[np.ndarray], *, share: bool) -> list[Reading]:
    model._shares_prefixes = share
    return model.read([Request(prompt, None, WANTED) for prompt in prompts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--documents", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--instruction", type=int, default=400)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--whole", action="store_true", help="also compute every prompt whole, in one sweep")
    args = parser.parse_args()
    with estream.load(args.package, memory=args.memory) as model:
        rng = np.random.default_rng(0)
        vocabulary = model.package.manifest.config.vocabulary
        instruction = rng.integers(0, vocabulary, args.instruction)
        documents = list(rng.integers(0, vocabulary, (args.documents, args.tokens)))
        prompts = [np.concatenate([instruction, document]) for document in documents]
        rows = range(args.instruction + args.tokens - args.documents, args.instruction + args.tokens)
        runs = {
            "shared": lambda: read(model, prompts, share=True),
            "as many tokens apart": lambda: read(model, [instruction, *documents], share=False),
            "one prompt": lambda: read(model, prompts[:1], share=False),
            # The last layer reads the experts of the positions that somebody wants.
            "one prompt, as many positions": lambda: model.read([Request(prompts[0], rows, WANTED)]),
        }
        if args.whole:
            runs["whole"] = lambda: read(model, prompts, share=False)
        figures, processor = defaultdict(list), defaultdict(list)
        answers = {}
        for _ in range(args.rounds):
            for name, run in runs.items():
                begin = time.process_time()
                found = run()
                processor[name].append(time.process_time() - begin)
                answers[name] = [reading.values for reading in found]
                figures[name].append(found[0].stats)
                s = found[0].stats
                print(
                    f"{name}: {s.computed_tokens} of {s.prompt_tokens} tokens, compute {s.compute_s:.2f} s, "
                    f"{processor[name][-1]:.2f} s of processor time, "
                    f"{s.ttft_s:.2f} s in all, {s.bytes_read / 1e6:.0f} MB read",
                    flush=True,
                )

    def ratio(figure: str, one: str, other: str) -> float:
        return statistics.median(
            getattr(a, figure) / getattr(b, figure) for a, b in zip(figures[one], figures[other], strict=True)
        )

    print(f"computing, shared / as many tokens apart: {ratio('compute_s', 'shared', 'as many tokens apart'):.3f}")
    pairs = zip(processor["shared"], processor["as many tokens apart"], strict=True)
    print(f"processor time, shared / as many tokens apart: {statistics.median(a / b for a, b in pairs):.3f}")
    print(f"bytes, shared / one prompt: {ratio('bytes_read', 'shared', 'one prompt'):.3f}")
    print(
        f"bytes, shared / one prompt, as many positions: {ratio('bytes_read', 'shared', 'one prompt, as many positions'):.3f}"
    )
    if args.whole:
        print(f"time, whole / shared: {ratio('ttft_s', 'whole', 'shared'):.2f}")
        pairs = zip(answers["shared"], answers["whole"], strict=True)
        same = all(np.array_equal(a[name], b[name]) for a, b in pairs for name in a)
        print(f"same bits: {same}")


if __name__ == "__main__":
    main()
