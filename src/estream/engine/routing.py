"""Which tokens go to which expert."""

from dataclasses import dataclass

import numpy as np

from estream import _native


def experts_to_prefetch_per_token(top_k: int) -> int:
    """How many experts of each token the next layer's router names early: the likeliest quarter of ``top_k``.

    Nine in ten of those come true or more, and what is named wrongly costs more than it hides (docs/experiments.md).
    """
    return max(1, top_k // 4)


@dataclass(frozen=True)
class RoutingLists:
    """Per expert, the tokens routed to it in rising order, and their weights.

    ``tokens`` int32 and ``weights`` float32 [tokens * top_k] hold the lists of all experts, one after another;
    expert e owns [starts[e], starts[e + 1]).
    """

    tokens: np.ndarray
    weights: np.ndarray
    starts: np.ndarray

    @staticmethod
    def of(ids: np.ndarray, weights: np.ndarray, experts: int) -> "RoutingLists":
        """From the chosen experts int32 [tokens, top_k] and their weights float32 [tokens, top_k]."""
        tokens, sorted_weights = np.empty(ids.size, np.int32), np.empty(ids.size, np.float32)
        starts = np.empty(experts + 1, np.int64)
        _native.list_by_expert(ids, weights, tokens, sorted_weights, starts)
        return RoutingLists(tokens, sorted_weights, starts)

    @staticmethod
    def none() -> "RoutingLists":
        """The routing of a dense layer."""
        return RoutingLists(np.empty(0, np.int32), np.empty(0, np.float32), np.zeros(1, np.int64))

    def count(self, expert: int) -> int:
        return int(self.starts[expert + 1] - self.starts[expert])

    @property
    def counts(self) -> np.ndarray:
        """int64 [experts]: the tokens of each; empty in a dense layer."""
        return np.diff(self.starts)

    def of_expert(self, expert: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(self.starts[expert], self.starts[expert + 1])
        return self.tokens[part], self.weights[part]

    @property
    def used(self) -> frozenset[int]:
        """Experts with at least one token."""
        return frozenset(np.flatnonzero(self.counts).tolist())
