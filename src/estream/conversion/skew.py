"""Routers of synthetic packages that use their experts unevenly, as trained ones do.

The first panel of the residual is reserved: layers add nothing to it, so that every layer sees what the embedding put there.
Its value 0 is alike in all tokens, and a router's weights for it make the experts' popularity; each other value marks
a topic, and the weights for it say which experts the topic likes. Both fall with the logarithm of an expert's rank, so
that use follows a power of the rank (Zipf's law), and ranks are drawn anew for each layer and topic. The rest of a router is
random, and scatters the tokens of a topic.
"""

import numpy as np

from estream.models.config import ModelConfig
from estream.package.layout import PageSpec
from estream.package.parts import PANEL, FloatPart, MatrixPart
from estream.package.topics import TOPICS, topics_of

#: What the embedding puts into the reserved values that it marks: then the rows' mean square stays 1.
_MARK = np.float32((PANEL / 2) ** 0.5)
#: How logits fall with the logarithm of the rank, in standard deviations of their random part. With both, 256 experts of which
#: a token takes 8 are used like those of a trained model of that shape: 40 % of them by 130 tokens of a prompt, 77 % by 1,658.
_POPULARITY = 0.7
_AFFINITY = 0.9


class RoutingSkew:
    """Changes random pages and embedding rows so that routing has the skew ``strength``; 1 is that of a trained model."""

    def __init__(self, config: ModelConfig, strength: float, deviation: float) -> None:
        self._config = config
        self._scale = strength * deviation * config.hidden**0.5 / float(_MARK)
        assert TOPICS < PANEL < config.hidden

    def embedding(self, rows: np.ndarray, first: int) -> np.ndarray:
        """Rows with their topics, uint16 bits of bfloat16 [rows, hidden]; ``first`` is the token id of the first."""
        rows = rows.copy()
        ids = np.arange(first, first + len(rows))
        mark = _MARK.view(np.uint32) >> 16
        rows[:, :PANEL] = 0
        rows[:, 0] = mark
        rows[np.arange(len(rows)), 1 + topics_of(ids, self._config.vocabulary)] = mark
        return rows

    def page(self, spec: PageSpec, data: np.ndarray) -> None:
        """Change a page in place, uint8 [spec.bytes]."""
        for part in spec.layout.parts:
            into = data[part.offset : part.offset + part.bytes]
            if isinstance(part, MatrixPart) and part.name in ("o", "down"):
                blocks = into.reshape(part.panels, part.groups, part.block_bytes)
                blocks[0, :, part.block_bytes - 2 * PANEL :] = 0  # the scales
            elif isinstance(part, FloatPart) and part.name in ("o_bias", "down_bias"):
                into.view(np.float32)[:PANEL] = 0.0
            elif isinstance(part, FloatPart) and part.name == "router":
                self._router(spec.layer, into.view(np.float32).reshape(part.shape))

    def _router(self, layer: int, weights: np.ndarray) -> None:
        """Set the reserved rows of a router, float32 [hidden, columns]."""
        experts = self._config.moe.experts
        random = np.random.default_rng([experts, layer])
        fall = -np.log(np.arange(1, experts + 1))
        fall -= fall.mean()
        weights[:PANEL] = 0.0
        weights[0, :experts] = self._scale * _POPULARITY * random.permutation(fall)
        for topic in range(TOPICS):
            weights[1 + topic, :experts] = self._scale * _AFFINITY * random.permutation(fall)
