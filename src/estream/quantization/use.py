"""How a text uses a model's experts, layer by layer, and in which order they are to lie."""

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from estream.engine.routing import RoutingLists
from estream.models.config import ModelConfig
from estream.package.expert_use import ExpertUse, LayerUse, UsedShare
from estream.package.layout import PageSpec, Quantization
from estream.quantization.stream import TextStream

#: Digits of a share that are kept.
_DIGITS = 6


class UseTally:
    """Counts which experts ``windows`` of token ids choose; gets the routing of each layer in turn.

    ``order`` has the ids of the experts of the layers so far, most used first, equally used ones by id.
    """

    def __init__(self, config: ModelConfig, windows: Sequence[np.ndarray]) -> None:
        self._config = config
        lengths = np.array([len(window) for window in windows])
        self._lengths = lengths
        #: Of each token, its window and its position there.
        self._window = np.repeat(np.arange(len(lengths)), lengths)
        self._position = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        self._layers: list[LayerUse] = []
        self.order: list[tuple[int, ...]] = []

    def add(self, routing: RoutingLists) -> None:
        """Count the next layer; a dense one has no routing."""
        layer = len(self.order)
        if layer in self._config.dense_layers:
            self.order.append(())
            return
        chosen = np.diff(routing.starts)
        self.order.append(tuple(np.argsort(-chosen, kind="stable").tolist()))
        tokens = float(len(self._window))
        self._layers.append(LayerUse(layer, tokens, chosen.astype(float).tolist(), self._curve(routing, chosen)))

    def use(self) -> ExpertUse:
        """What was counted so far."""
        return ExpertUse(list(self._layers))

    def _curve(self, routing: RoutingLists, chosen: np.ndarray) -> list[UsedShare]:
        """The share of experts that the first 1, 2, 4, ... tokens of a window use, over the windows that are so long."""
        experts = len(chosen)
        never = int(self._lengths.max())
        first_use = np.full((len(self._lengths), experts), never)
        places = self._window[routing.tokens], np.repeat(np.arange(experts), chosen)
        np.minimum.at(first_use, places, self._position[routing.tokens])
        curve = []
        for tokens in takewhile(lambda n: n <= never, (1 << i for i in range(never.bit_length()))):
            windows = first_use[self._lengths >= tokens]
            curve.append(UsedShare(float(tokens), round(float((windows < tokens).mean()), _DIGITS), float(len(windows))))
        return curve


class TextUse:
    """Takes a text through the pages of a package as they are written, in tape order, and tallies the ``use`` of experts."""

    #: Pages of the largest size that are copied beside those of the conversion.
    PAGES = 1

    def __init__(
        self, config: ModelConfig, quantization: Quantization, windows: list[np.ndarray], embeddings: np.ndarray
    ) -> None:
        """Start at the embeddings, float32 [tokens of all windows, hidden].

        Raises:
            OptionError: the activations do not fit into memory.

        """
        self._stream = TextStream(config, quantization, windows, embeddings, float_activations=False)
        self.use = UseTally(config, windows)

    def compute(self, spec: PageSpec, page: np.ndarray) -> None:
        """Compute with the next page, uint8 [spec.bytes]."""
        self._stream.compute(spec, page)
        if spec.kind == "router":
            self.use.add(self._stream.routing)
