"""What sweeps teach of the use of experts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_machines import CONFIG, draw_counts, skewed_use

from estream.engine.batch import BatchShape
from estream.engine.use import LearnedUse, even_share, independent_tokens, relative_use
from estream.schema import from_plain, to_plain

LAYERS, EXPERTS, TOP_K = CONFIG.layers, CONFIG.moe.experts, CONFIG.moe.top_k


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=5))
def test_nothing_known_is_even_routing(lengths: list[int]):
    use = LearnedUse(CONFIG)
    assert not use.is_known
    assert use.of_short_prompt() is None
    np.testing.assert_allclose(use.chances(BatchShape(tuple(lengths), 1)), even_share(CONFIG, sum(lengths)), rtol=1e-9)


@given(st.integers(1, 500), st.integers(0, 2**32 - 1))
def test_independent_tokens_are_found_again(tokens: int, seed: int):
    shares = np.random.default_rng(seed).dirichlet(np.ones(EXPERTS), 3) * 0.9 + 0.05 / EXPERTS
    used = (1 - (1 - shares) ** tokens).sum(axis=-1)
    np.testing.assert_allclose(independent_tokens(shares, used, 1000.0), tokens, rtol=0.02)


def test_learned_chances_come_true():
    """Of the experts to which a chance is given, that share is used by prompts that were not learned from."""
    rng = np.random.default_rng(1)
    shares = np.stack([rng.permutation(1.0 / np.arange(1, EXPERTS + 1)) for _ in range(LAYERS)])
    use = LearnedUse(CONFIG)
    for _ in range(40):
        use.observe(draw_counts(rng, shares, 7), BatchShape.of_prompt(7))
    chances = use.chances(BatchShape.of_prompt(7))
    seen = np.mean([draw_counts(rng, shares, 7) > 0 for _ in range(20)], axis=0)
    for low, high in ((0.0, 0.4), (0.4, 0.7), (0.7, 0.9), (0.9, 1.0)):
        band = (chances >= low) & (chances < high)
        assert band.sum() > 20
        assert seen[band].mean() == pytest.approx(chances[band].mean(), abs=0.1)


def test_tokens_that_resemble_each_other_count_as_fewer():
    """Prompts of 128 alike tokens use no more experts than one of them; so will the next such prompt."""
    use, rng = LearnedUse(CONFIG), np.random.default_rng(2)
    for _ in range(10):
        counts = draw_counts(rng, np.ones((LAYERS, EXPERTS)), 1) * 128
        use.observe(counts, BatchShape.of_prompt(128))
    expected = use.chances(BatchShape.of_prompt(128)).sum(axis=-1)
    assert (expected < 3 * TOP_K).all()
    # Two prompts use more than one of them, and longer ones more than short ones.
    assert (use.chances(BatchShape((128, 128), 2)).sum(axis=-1) > expected).all()
    assert (use.chances(BatchShape.of_prompt(300)).sum(axis=-1) >= expected).all()
    np.testing.assert_allclose(use.chances(BatchShape.of_prompt(1)).sum(axis=-1), TOP_K, rtol=1e-6)


def test_what_is_stored_comes_back():
    use = skewed_use()
    stored = use.stored()
    stored.check(CONFIG)
    again = LearnedUse(CONFIG, from_plain(to_plain(stored), type(stored)))
    for tokens in (1, 16, 100, 5000):
        shape = BatchShape.of_prompt(tokens)
        np.testing.assert_allclose(again.chances(shape), use.chances(shape), atol=1e-3)


def test_old_prompts_are_forgotten():
    use = LearnedUse(CONFIG)
    first, second = np.zeros((2, LAYERS, EXPERTS), np.int64)
    first[:, :TOP_K], second[:, -TOP_K:] = 1000, 1000
    for counts in [first] * 100 + [second] * 400:
        use.observe(counts, BatchShape.of_prompt(1000))
    shares = use.shares()
    assert (shares[:, :TOP_K] < 0.05).all()
    assert (shares[:, -TOP_K:] > 0.95).all()


@given(st.floats(0.05, 0.9), st.floats(0.3, 3.0))
def test_relative_use_tells_how_many_tokens_a_batch_counts_as(chance: float, times: float):
    chances = np.full(256, chance)
    used = round(float((1 - (1 - chances) ** times).sum()))
    found = relative_use(chances, used)
    assert (1 - (1 - chances) ** found).sum() == pytest.approx(used, abs=1.5)
    assert relative_use(np.full(64, 1.0), 64) == 1.0
