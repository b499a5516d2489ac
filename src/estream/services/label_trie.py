"""Labels as a tree of tokens: what one label has in common with another is read once.

A label's probability is that of its tokens, one after another. Where a longer label begins with all of a shorter one's
tokens, the shorter one ends there with what the longer ones leave: P(tokens) x (1 - P(a token that goes on with one of
them)). So labels exclude each other, and their probabilities add up to one at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from estream.engine.wanted import LogProbabilities, Request
from estream.errors import OptionError
from estream.services.port import Read

_Tokens = tuple[int, ...]


@dataclass
class _Node:
    """What follows some tokens: the next ones, in rising order, and how the label is called that ends here."""

    children: dict[int, "_Node"] = field(default_factory=dict)
    label: int | None = None


@dataclass(frozen=True)
class LabelTrie:
    """``labels``: their tokens, none empty, no two equal. Made by :meth:`of`."""

    labels: tuple[_Tokens, ...]
    root: _Node
    #: Tokens behind the prompt, for each request: those of a deepest place where more than one way goes on.
    paths: tuple[_Tokens, ...]

    @staticmethod
    def of(labels: Sequence[Sequence[int]], names: Sequence[str]) -> "LabelTrie":
        """Raises OptionError where a label has no tokens, or two have the same."""
        root = _Node()
        for index, tokens in enumerate(labels):
            if not len(tokens):
                raise OptionError(f"label {index} ({names[index]!r}) has no tokens of its own behind the prompt")
            node = root
            for token in tokens:
                node = node.children.setdefault(int(token), _Node())
            if node.label is not None:
                raise OptionError(f"labels {node.label} and {index} are equal, {names[index]!r}: both have the same tokens")
            node.label = index
        return LabelTrie(tuple(tuple(map(int, tokens)) for tokens in labels), root, tuple(_ends(root, ())))

    @property
    def longest(self) -> int:
        """Tokens that a request reads behind the prompt at most."""
        return max(len(path) for path in self.paths)

    def requests(self, prompt: np.ndarray) -> tuple[Request, ...]:
        """What to read behind a prompt, int32 [tokens]."""
        return tuple(self._request(prompt, path) for path in self.paths)

    def _request(self, prompt: np.ndarray, path: _Tokens) -> Request:
        rows = [list(node.children) for node in self._along(path)]
        widest = max(map(len, rows))
        # Rows of one length: a token may be asked for twice.
        ids = np.array([row + row[:1] * (widest - len(row)) for row in rows], np.int32)
        positions = range(len(prompt) - 1, len(prompt) + len(path))
        return Request(np.concatenate([prompt, np.array(path, np.int32)]), positions, LogProbabilities(ids))

    def _along(self, path: _Tokens) -> list[_Node]:
        nodes = [self.root]
        for token in path:
            nodes.append(nodes[-1].children[token])
        return nodes

    def log_probabilities(self, readings: Sequence[Read]) -> np.ndarray:
        """Of each label, float64 [labels]."""
        steps: dict[_Tokens, dict[int, float]] = {}
        for path, reading in zip(self.paths, readings, strict=True):
            rows = reading.values["log_probabilities"]
            for depth, node in enumerate(self._along(path)):
                found = zip(node.children, rows[depth].tolist(), strict=False)
                steps.setdefault(path[:depth], dict(found))
        result = np.zeros(len(self.labels))
        for index, tokens in enumerate(self.labels):
            result[index] = sum(steps[tokens[:depth]][token] for depth, token in enumerate(tokens))
            if tokens in steps:
                going_on = sum(np.exp(value) for value in steps[tokens].values())
                result[index] += np.log1p(-going_on) if going_on < 1 else -np.inf
        return result


def _ends(node: _Node, path: _Tokens) -> list[_Tokens]:
    """The paths to the nodes with children whose children have none."""
    below = [end for token, child in node.children.items() if child.children for end in _ends(child, (*path, token))]
    return below or [path]
