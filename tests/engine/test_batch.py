"""Prompts and positions that are refused."""

import numpy as np
import pytest

import estream
from estream.errors import OptionError, PromptError


def test_bad_prompts_are_refused_at_the_door(tiny_package):
    with estream.load(tiny_package.path) as model:
        for prompt, message in (
            ([], "is empty"),
            ([330], r"id 330, the vocabulary is 0\.\.329"),
            ([-1], "id -1"),
            ([0] * 513, "513 tokens, the model's context is 512"),
            ([[1, 2]], "flat sequence"),
            ([0.5], "whole-number"),
            ("text", "without a tokenizer"),
            ([[1], [2, 3]], "flat sequence"),
            ([True, False], "whole-number"),
            ([10**400], "whole-number"),
        ):
            with pytest.raises(PromptError, match=message):
                model.prefill(prompt)
        with pytest.raises(PromptError, match="prompt 1 is empty"):
            model.prefill_batch([[1], []])
        with pytest.raises(PromptError, match="position 2 is outside the prompt of 2 tokens"):
            model.prefill([1, 2], positions=[2])
        with pytest.raises(PromptError, match="no prompt"):
            model.prefill_batch([])
        with pytest.raises(PromptError, match="must be a list of texts"):
            model.prefill_batch("hello")
        with pytest.raises(PromptError, match="positions of the prompt must be whole numbers"):
            model.prefill([1, 2], positions=[0.5])
        for flags in ([True, False], np.array([True, False])):
            with pytest.raises(PromptError, match="positions of the prompt must be whole numbers"):
                model.prefill([1, 2], positions=flags)
        with pytest.raises(PromptError, match="position 7 is outside prompt 1 of 1 tokens"):
            model.prefill_batch([[1], [2]], [[0], [7]])
        with pytest.raises(OptionError, match="count of at least 1"):
            model.top(model.prefill([1]), 0)
