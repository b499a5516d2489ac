"""Log-probabilities against torch's, and the same bits alone and in any company."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import logits
from tolerances import FLOAT_LOGITS
from transformers import PreTrainedModel

from estream.api.model import Model
from estream.errors import PromptError
from estream.services.score import Score, TokenScore

TEXT = "Description: Play chess across 3 boards — naïve 你好\nSection: games"


def expected(theirs: PreTrainedModel, ids: list[int]) -> tuple[np.ndarray, float]:
    """The log-probability of each id but the first, and how far ours may be off."""
    found = torch.from_numpy(logits(theirs, np.array(ids)))
    every = torch.log_softmax(found.double(), -1).numpy()
    return every[np.arange(len(ids) - 1), ids[1:]], 2 * FLOAT_LOGITS * float(found.abs().max())


def test_a_text_has_the_log_probabilities_that_torch_computes(model: Model, theirs: PreTrainedModel):
    found = model.score(TEXT)
    ids = model.encode(TEXT)
    wanted, near = expected(theirs, ids)
    assert [token.id for token in found.tokens] == ids
    assert found.tokens[0].logprob is None
    np.testing.assert_allclose([token.logprob for token in found.tokens[1:]], wanted, atol=near)
    assert found.logprob == pytest.approx(sum(token.logprob for token in found.tokens[1:]), abs=1e-9)
    assert found.logprob_per_token == pytest.approx(found.logprob / (len(ids) - 1))
    assert b"".join(token.bytes for token in found.tokens).decode() == TEXT
    assert found.logprob_per_byte == pytest.approx(found.logprob / (len(TEXT.encode()) - len(found.tokens[0].bytes)))
    assert found.prompt_tokens == len(ids)
    assert found.stats.bytes_read >= 0


def test_a_continuation_is_scored_behind_its_context(model: Model, theirs: PreTrainedModel):
    context, continuation = "Description: Play chess across 3 boards\nSection:", " games"
    found = model.score((context, continuation))
    ids = model.encode(context + continuation)
    wanted, near = expected(theirs, ids)
    assert [token.id for token in found.tokens] == ids[len(model.encode(context)) :]
    np.testing.assert_allclose([token.logprob for token in found.tokens], wanted[-len(found.tokens) :], atol=near)
    assert found.logprob_per_byte == found.logprob / len(continuation)
    # Spaces at the end of the context belong to the continuation.
    assert model.score((context + " ", "games")).logprob == found.logprob
    assert model.score((ids[: -len(found.tokens)], ids[-len(found.tokens) :])).logprob == found.logprob


def test_a_continuation_that_merges_is_split_as_lm_evaluation_harness_does(model: Model):
    context, continuation = "the applica", "tion is here"
    before, whole = model.encode(context), model.encode(context + continuation)
    assert whole[: len(before)] != before
    found = model.score((context, continuation))
    behind = whole[len(before) :]
    assert [token.id for token in found.tokens] == behind
    assert found.logprob == model.score((before, behind)).logprob
    with pytest.raises(PromptError, match="the continuation is empty, or a part of the context's last token"):
        model.score(("a", "b"))
    assert len(model.encode("ab")) == 1


def test_an_empty_context_is_the_token_that_texts_begin_with(model: Model):
    found = model.score(("", "games"))
    assert found.logprob == model.score(([0], model.encode("games"))).logprob
    assert model.score(("  ", "games")).tokens[0].token.startswith(" ")


def test_greedy_says_whether_each_token_was_the_likeliest(model: Model):
    prompt = model.encode("Description: Play chess across 3 boards\nSection:")
    best = int(model.prefill(prompt).logits.argmax())
    assert model.score((prompt, [best]), greedy=True).greedy is True
    assert model.score((prompt, [best, 5, 9]), greedy=True).greedy is False
    assert model.score((prompt, [best])).greedy is None


def test_a_single_token_has_nothing_to_score(model: Model):
    found = model.score([7])
    assert (found.logprob, found.logprob_per_token, found.logprob_per_byte) == (0.0, None, None)
    assert [token.logprob for token in found.tokens] == [None]


@pytest.fixture(scope="module")
def several(model: Model, packages) -> tuple[list, list[Score]]:
    texts = [row["description"] for row in packages[:9]]
    items = [*texts, *[(text, " games") for text in texts[:4]], model.encode(TEXT), ("", "web server"), [7]]
    return items, [model.score(item, greedy=True) for item in items]


@settings(max_examples=6)
@given(order=st.permutations(range(16)), size=st.integers(2, 16))
def test_the_same_bits_alone_and_in_any_company(model: Model, several, order: list[int], size: int):
    items, alone = several
    chosen = order[:size]
    found = model.score([items[i] for i in chosen], greedy=True)
    for i, each in zip(chosen, found, strict=True):
        assert each.to_json() == alone[i].to_json()


def test_zero_probability_is_null_in_json(model: Model):
    stats = model.score([7]).stats
    token = TokenScore(1, "a", b"a", -math.inf)
    found = Score(-math.inf, -math.inf, -math.inf, (token,), 2, 0, None, stats).to_json()
    text = json.loads(json.dumps(found, allow_nan=False))
    assert text["logprob"] is None
    assert text["logprob_per_token"] is None
    assert text["tokens"][0]["logprob"] is None


def test_what_is_too_long_is_refused_with_both_lengths_or_shortened(model: Model):
    long = "chess " * 3000
    count, context = len(model.encode(long)), model.package.manifest.config.context
    with pytest.raises(PromptError, match=f"the text has {count} tokens, the model's context is {context} tokens"):
        model.score(long)
    with pytest.raises(PromptError, match=f"text 1 has {count - 1} tokens of context and 1 of continuation"):
        model.score(["short", (long, "games")])
    found = model.score((long, "games"), truncate=True)
    assert found.truncated_tokens == count - 1 - context
    assert found.prompt_tokens == context + 1
    assert model.score(long, truncate=True).truncated_tokens >= count - context


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("", "the text is empty"),
        (("a", ""), "the continuation is empty"),
        (("a", [1]), "must both be texts or both be token ids"),
        ([1, 9000], r"the text has id 9000, the vocabulary is 0\.\.8191"),
        ([[1.5]], "text 0 must be text or a flat sequence"),
    ],
)
def test_what_cannot_be_scored_is_refused(model: Model, bad, message: str):
    with pytest.raises(PromptError, match=message):
        model.score(bad)
