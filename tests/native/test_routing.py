"""Choosing experts, against NumPy written from the papers."""

import numpy as np
import pytest

from estream import _native
from estream.engine.routing import RoutingLists

TOKENS = 300


def _route(routing, logits: np.ndarray, top_k: int, bias=None, correction=None) -> tuple[np.ndarray, np.ndarray]:
    ids, weights = np.empty((len(logits), top_k), np.int32), np.empty((len(logits), top_k), np.float32)
    lanes = np.full((len(logits), -(-logits.shape[1] // 16) * 16), 99.0, np.float32)
    lanes[:, : logits.shape[1]] = logits
    addresses = [0 if a is None else a.ctypes.data for a in (bias, correction)]
    _native.route(routing, lanes, ids, weights, *addresses)
    return ids, weights


def _logits(experts: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((TOKENS, experts)).astype(np.float32) * 2


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


@pytest.mark.parametrize(("groups", "top_groups", "normalise"), [(1, 1, True), (8, 3, True), (4, 1, False), (16, 16, False)])
def test_sigmoid_with_corrections_and_groups(groups, top_groups, normalise):
    """DeepSeek-V3, section 2.1.2: groups by their two best, experts by corrected scores, weights without correction."""
    experts, top_k = 32, 5
    logits, rng = _logits(experts), np.random.default_rng(1)
    correction = rng.standard_normal(experts).astype(np.float32)
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    ranks = scores + correction
    worth = np.sort(ranks.reshape(TOKENS, groups, -1), axis=2)[:, :, -2:].sum(2)
    allowed = np.zeros((TOKENS, groups), bool)
    np.put_along_axis(allowed, _best(worth, top_groups), True, 1)
    chosen = _best(np.where(np.repeat(allowed, experts // groups, 1), ranks, -np.inf), top_k)
    expected = np.take_along_axis(scores, chosen, 1)
    expected = (expected / expected.sum(1, keepdims=True) if normalise else expected) * 2.5
    routing = _native.Routing(experts, top_k, "sigmoid", normalise, 2.5, groups, top_groups)
    ids, weights = _route(routing, logits, top_k, correction=correction)
    np.testing.assert_array_equal(ids, chosen)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


def test_softmax_with_groups():
    """DeepSeek-V2, section 2.2.2: groups by their best expert."""
    experts, groups, top_groups, top_k = 40, 8, 3, 6
    logits = _logits(experts)
    scores = np.exp(logits.astype(np.float64))
    scores /= scores.sum(1, keepdims=True)
    allowed = np.zeros((TOKENS, groups), bool)
    np.put_along_axis(allowed, _best(scores.reshape(TOKENS, groups, -1).max(2), top_groups), True, 1)
    chosen = _best(np.where(np.repeat(allowed, experts // groups, 1), scores, 0.0), top_k)
    ids, weights = _route(_native.Routing(experts, top_k, "softmax", False, 16.0, groups, top_groups), logits, top_k)
    np.testing.assert_array_equal(ids, chosen)
    np.testing.assert_allclose(weights, 16 * np.take_along_axis(scores, chosen, 1), rtol=1e-5)


def test_biases_of_the_router_come_before_the_softmax():
    logits = _logits(8)
    bias = np.random.default_rng(2).standard_normal(8).astype(np.float32) * 3
    ids, weights = _route(_native.Routing(8, 2, normalise=True), logits, 2, bias=bias)
    expected_ids, expected_weights = _route(_native.Routing(8, 2, normalise=True), logits + bias, 2)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(weights, expected_weights)


@pytest.mark.parametrize("jitter", [0.0, 0.01, 0.4])
def test_sparsemixer_weighs_each_expert_against_those_near_it(jitter):
    """GRIN, section 2.2: the second expert is chosen as the first, with the first left out."""
    logits = _logits(16)
    ids, weights = _route(_native.Routing(16, 2, "sparsemixer", jitter=jitter), logits, 2)
    for row, chosen, found in zip(logits.astype(np.float64), ids, weights, strict=True):
        left = row.copy()
        for expert, weight in zip(chosen, found, strict=True):
            top = left.max()
            assert left[expert] == top
            far = (top - row) / np.maximum(np.abs(row), top) > 2 * jitter
            near = np.where(far, -np.inf, left)
            assert weight == pytest.approx(1 / np.exp(near - top).sum(), rel=1e-5)
            left[expert] = -np.inf


def test_a_gate_is_the_sigmoid_of_its_column():
    logits = _logits(16)
    gates = np.empty(TOKENS, np.float32)
    _native.sigmoid_gates(logits, 5, gates)
    np.testing.assert_allclose(gates, 1 / (1 + np.exp(-logits[:, 5])), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"top_k": 9}, "top_k"),
        ({"groups": 3}, "groups must"),
        ({"groups": 4, "top_groups": 5}, "top_groups"),
        ({"groups": 4, "top_groups": 1, "top_k": 3}, "fewer than top_k"),
        ({"scoring": "hash"}, "scoring must be"),
        ({"scoring": "sparsemixer", "top_k": 3}, "two experts"),
    ],
)
def test_routing_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        _native.Routing(**{"experts": 8, "top_k": 2} | arguments)


def test_lists_hold_each_experts_tokens_in_rising_order():
    rng = np.random.default_rng(3)
    ids = np.stack([rng.permutation(9)[:3] for _ in range(TOKENS)]).astype(np.int32)
    weights = rng.random(ids.shape, np.float32)
    lists = RoutingLists.of(ids, weights, 12)
    assert lists.used == frozenset(range(9))
    for expert in range(12):
        tokens, places = np.nonzero(ids == expert)
        found, found_weights = lists.of_expert(expert)
        np.testing.assert_array_equal(found, tokens)
        np.testing.assert_array_equal(found_weights, weights[tokens, places])
    with pytest.raises(ValueError, match="an expert is out of range"):
        RoutingLists.of(ids, weights, 8)
