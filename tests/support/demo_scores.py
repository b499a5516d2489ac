"""How a package of the demo model answers, beside the model in float32."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import estream
from estream.package.package import Package
from estream.text.tokenizer import TextTokenizer

#: Token ids of a prompt and of its answer.
Texts = list[tuple[list[int], list[int]]]


@dataclass
class Scores:
    """Log-probabilities after each prompt, of each answer's tokens, and of the whole text."""

    next_token: np.ndarray
    right: np.ndarray
    nll: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.nll / self.tokens))


def held_out_texts(path: Path, package: Package) -> Texts:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 400
    encode = TextTokenizer(package.tokenizer_path, package.path).encode
    return [(encode(f"Description: {row['description']}\nSection:"), encode(f" {row['section']}")) for row in rows]


def score(texts: Texts, all_logits: Iterable[np.ndarray]) -> Scores:
    """From the logits float32 [tokens, vocabulary] of each text."""
    next_token, right, nll, count = [], [], 0.0, 0
    for (prompt, answer), found in zip(texts, all_logits, strict=True):
        ids = np.array(prompt + answer)
        nll += (_log_of_sum(found[:-1]) - found[np.arange(len(ids) - 1), ids[1:]]).sum()
        count += len(ids) - 1
        next_token.append(_log_softmax(found[len(prompt) - 1]))
        right.append((found[len(prompt) - 1 : -1].argmax(-1) == answer).all())
    return Scores(np.array(next_token), np.array(right), float(nll), count)


def measure(package: Package, texts: Texts) -> Scores:
    def run():
        with estream.load(package.path) as model:
            for first in range(0, len(texts), 16):
                prompts = [prompt + answer for prompt, answer in texts[first : first + 16]]
                for result in model.prefill_batch(prompts, [range(len(p)) for p in prompts]):
                    yield result.logits

    return score(texts, run())


def kl(reference: Scores, found: Scores) -> float:
    """Mean divergence of the next token after each prompt."""
    return float((np.exp(reference.next_token) * (reference.next_token - found.next_token)).sum(-1).mean())


def _log_of_sum(x: np.ndarray) -> np.ndarray:
    """The logarithm of each row's sum of exponentials, float64. Exponentials in float32: their errors cancel in the sum."""
    largest = x.max(-1, keepdims=True)
    exponentials = x - largest
    np.exp(exponentials, out=exponentials)
    return largest[:, 0] + np.log(exponentials.sum(-1, dtype=np.float64))


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max()
    return x - np.log(np.exp(x).sum())
