"""Prompts of synthetic packages."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from estream.package.topics import TOPICS, TOPICS_OF_A_PROMPT, prompt_ids, topics_of


def _manifest(vocabulary: int, **source: float) -> Any:
    return SimpleNamespace(source={"kind": "synthetic", **source}, config=SimpleNamespace(vocabulary=vocabulary))


@pytest.mark.parametrize("vocabulary", [7, 31, 100, 151_936])
def test_a_prompt_speaks_of_few_topics_in_runs(vocabulary: int):
    skewed = _manifest(vocabulary, routing_skew=1.0)
    ids = prompt_ids(skewed, 4000, 3)
    assert ids.dtype == np.int32
    assert ids.shape == (4000,)
    assert ids.min() >= 0
    assert ids.max() < vocabulary
    topics = topics_of(ids, vocabulary)
    assert 1 < len(np.unique(topics)) <= TOPICS_OF_A_PROMPT
    assert np.mean(topics[1:] != topics[:-1]) < 0.05
    if vocabulary > 1000:
        assert len(np.unique(ids)) > 2000


def test_seeds_decide_the_prompt():
    skewed = _manifest(5000, routing_skew=0.5)
    assert np.array_equal(prompt_ids(skewed, 200, 1), prompt_ids(skewed, 200, 1))
    spoken = {frozenset(topics_of(prompt_ids(skewed, 2000, seed), 5000).tolist()) for seed in range(8)}
    assert len(spoken) == 8


def test_even_packages_get_uniformly_random_ids():
    ids = prompt_ids(_manifest(5000), 3000, 9)
    assert np.array_equal(ids, np.random.default_rng(9).integers(0, 5000, 3000, dtype=np.int32))
    assert len(np.unique(topics_of(ids, 5000))) == TOPICS
