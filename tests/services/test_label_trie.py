"""A tree of labels: each label's tokens once, and labels that start alike exclude each other."""

from dataclasses import dataclass

import numpy as np
import pytest

from estream.errors import OptionError
from estream.services.label_trie import LabelTrie

PROMPT = np.array([9, 9], np.int32)


@dataclass
class _Reading:
    values: dict[str, np.ndarray]
    stats: None = None


def test_labels_of_one_token_need_one_request():
    (request,) = LabelTrie.of([[3], [5], [4]], "abc").requests(PROMPT)
    assert request.prompt.tolist() == [9, 9]
    assert list(request.positions) == [1]
    assert sorted(request.wanted.ids[0].tolist()) == [3, 4, 5]


def test_what_labels_have_in_common_is_read_once():
    trie = LabelTrie.of([[1, 2, 3], [1, 2, 4], [1, 5], [6], [7, 8]], "abcde")
    assert [request.prompt.tolist() for request in trie.requests(PROMPT)] == [[9, 9, 1, 2], [9, 9, 7]]
    assert trie.longest == 2


def test_a_label_ends_where_no_longer_one_goes_on():
    trie = LabelTrie.of([[1], [1, 2], [1, 3]], "abc")
    (request,) = trie.requests(PROMPT)
    chances = {1: 0.5, 2: 0.25, 3: 0.125}
    rows = np.log(np.array([[chances[token] for token in row] for row in request.wanted.ids.tolist()]))
    found = np.exp(trie.log_probabilities([_Reading({"log_probabilities": rows})]))
    np.testing.assert_allclose(found, [0.5 * 0.625, 0.125, 0.0625])


def test_equal_and_empty_labels_are_refused():
    with pytest.raises(OptionError, match="labels 0 and 2 are equal, 'c': both have the same tokens"):
        LabelTrie.of([[1, 2], [3], [1, 2]], "abc")
    with pytest.raises(OptionError, match="label 1 .'b'. has no tokens"):
        LabelTrie.of([[1], []], "ab")
