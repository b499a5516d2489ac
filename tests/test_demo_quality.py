"""What quantisation costs the demo model, measured over 400 packages that it never saw."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import DEMO, HELD_OUT
from tiny import logits
from tolerances import ACCURACY_4BIT, KL_4BIT, KL_8BIT, PERPLEXITY_4BIT, SAME_TOP_8BIT
from transformers import OlmoeForCausalLM

import estream
from estream.package.package import Package


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


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.fixture(scope="module")
def texts(demo_package: Package) -> list[tuple[list[int], list[int]]]:
    rows = [json.loads(line) for line in HELD_OUT.read_text().splitlines()]
    assert len(rows) == 400
    with estream.load(demo_package.path) as model:
        return [
            (model.encode(f"Description: {row['description']}\nSection:"), model.encode(f" {row['section']}")) for row in rows
        ]


def _score(texts, all_logits) -> Scores:
    next_token, right, nll, count = [], [], 0.0, 0
    for (prompt, answer), found in zip(texts, all_logits, strict=True):
        ids, logprobs = np.array(prompt + answer), _log_softmax(found)
        nll -= logprobs[np.arange(len(ids) - 1), ids[1:]].sum()
        count += len(ids) - 1
        next_token.append(logprobs[len(prompt) - 1])
        right.append((logprobs[len(prompt) - 1 : -1].argmax(-1) == answer).all())
    return Scores(np.array(next_token), np.array(right), nll, count)


@pytest.fixture(scope="module")
def reference(texts) -> Scores:
    model = OlmoeForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    return _score(texts, (logits(model, np.array(prompt + answer)) for prompt, answer in texts))


def _measure(package: Package, texts) -> Scores:
    def run():
        with estream.load(package.path) as model:
            for first in range(0, len(texts), 16):
                prompts = [prompt + answer for prompt, answer in texts[first : first + 16]]
                for result in model.prefill_batch(prompts, [range(len(p)) for p in prompts]):
                    yield result.logits

    return _score(texts, run())


def _kl(reference: Scores, found: Scores) -> float:
    return float((np.exp(reference.next_token) * (reference.next_token - found.next_token)).sum(-1).mean())


def test_eight_bits_change_next_to_nothing(demo_package_8bit: Package, texts, reference: Scores, record_property):
    found = _measure(demo_package_8bit, texts)
    same = (found.next_token.argmax(-1) == reference.next_token.argmax(-1)).mean()
    record_property("kl", _kl(reference, found))
    record_property("same_top", float(same))
    record_property("perplexity_ratio", found.perplexity / reference.perplexity)
    assert same >= SAME_TOP_8BIT
    assert _kl(reference, found) <= KL_8BIT


def test_four_bits_cost_less_than_a_percent(demo_package: Package, texts, reference: Scores, record_property):
    found = _measure(demo_package, texts)
    record_property("kl", _kl(reference, found))
    record_property("perplexity_ratio", found.perplexity / reference.perplexity)
    record_property("accuracy_difference", float(found.right.mean() - reference.right.mean()))
    assert found.perplexity <= PERPLEXITY_4BIT * reference.perplexity
    assert _kl(reference, found) <= KL_4BIT
    assert abs(found.right.mean() - reference.right.mean()) <= ACCURACY_4BIT
