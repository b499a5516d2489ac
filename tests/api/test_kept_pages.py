"""Memory given is memory used: with room for the model no page is read twice."""

import numpy as np

from estream.api.model import Model
from estream.engine.options import LoadOptions
from estream.package.package import Package


def _ids(package: Package, tokens: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, package.manifest.config.vocabulary, tokens)


def test_no_page_is_read_twice_where_all_have_room(demo_package: Package):
    pages = 0
    with Model(demo_package, LoadOptions()) as model:
        for seed, tokens in enumerate((16, 1, 300, 64, 16, 1000, 5)):
            stats = model.prefill(_ids(demo_package, tokens, seed)).stats
            pages += stats.bytes_read - stats.embedding_bytes
        assert pages <= demo_package.manifest.pages_bytes
        again = model.prefill(_ids(demo_package, 300, 2)).stats
        assert again.bytes_read == again.embedding_bytes > 0


def test_a_long_prompt_takes_places_that_a_short_one_gets_back(demo_package: Package):
    """Pages that make room for activations are read again once, and stay again."""
    whole = LoadOptions(ring_bytes=4 << 20)
    with Model(demo_package, whole) as model:
        short, long = _ids(demo_package, 16, 0), _ids(demo_package, 2000, 1)
        expected = model.prefill(short).logits
        model.prefill(long)
        for _ in range(2):
            np.testing.assert_array_equal(model.prefill(short).logits, expected)
        stats = model.prefill(short).stats
        assert stats.bytes_read == stats.embedding_bytes
