"""Scoring a corpus: the texts that surprise the model most, by log-likelihood per byte.

For a corpus in files there is the command, which goes on where it was stopped:

    estream score PKG --input corpus.jsonl --output scores.jsonl --resume
"""

import estream
from demo import package

TEXTS = [
    "Description: This package contains the development files.\nSection: libdevel",
    "Description: This package contains the documentation.\nSection: doc",
    "Description: zq xv!! 00 qqq ;;; kx\nSection: doc",
]

with estream.load(package()) as model:
    scores = model.score(TEXTS, truncate=True)
    for text, score in sorted(zip(TEXTS, scores, strict=True), key=lambda pair: pair[1].logprob_per_byte or 0):
        print(f"{score.logprob_per_byte:8.3f} {text!r}")
