"""What calibration takes beside a conversion: known before anything is read for it."""

import numpy as np

from estream.host import limits
from estream.host.sizes import MiB
from estream.models.config import ModelConfig
from estream.package.layout import Quantization
from estream.quantization.stream import activation_plan

#: An expert gets at most this many times its mean share of the tokens, or what it takes is checked when that is known.
BUSIEST = 4
#: Tokens that an expert may have beside its own (``calibration.py``).
_BORROWED = 512
#: Tokens whose inputs are in memory at once for a layer's correction.
_AT_ONCE = 4096
#: Buffers of the linear algebra for each of its threads.
_THREAD = 4 * MiB


def text_bytes(config: ModelConfig, quantization: Quantization, windows: list[np.ndarray], chooses: bool) -> int:
    """Bytes for ``windows`` of token ids that go through the model, or through two of them where codes are chosen by them."""
    tokens, hidden = sum(map(len, windows)), config.hidden
    if not chooses:
        return activation_plan(config, quantization, windows, float_activations=False).bytes + 12 * tokens * hidden
    plans = sum(activation_plan(config, quantization, windows, float_activations=f).bytes for f in (False, True))
    embeddings = 4 * tokens * hidden
    # Ten matrices of all inputs while a correction is made, two of which stay: of the layer and of the head.
    layer = 20 * min(tokens, _AT_ONCE) * hidden + 40 * hidden * hidden
    expert = expert_bytes(config, quantization, most_tokens(config, tokens))
    return plans + max(embeddings, layer + expert) + _THREAD * limits.default_threads()


def most_tokens(config: ModelConfig, tokens: int) -> int:
    """The tokens of an expert that :func:`text_bytes` counts."""
    moe = config.moe
    return min(tokens, BUSIEST * tokens * moe.top_k // moe.experts) + _BORROWED


def expert_bytes(config: ModelConfig, quantization: Quantization, tokens: int) -> int:
    """Bytes for choosing the codes of an expert with so many tokens."""
    hidden, width = config.hidden, -(-config.moe.intermediate_size // quantization.expert_slices)
    # Both models' inputs in float32, and in float64 for the moments; gate and up, their product, and its moments.
    inputs = tokens * (20 * hidden + 24 * width)
    # Moments in float64, their factor and what it is made of; corrections.
    squares = 72 * max(hidden, width) ** 2
    weights = 6 * 4 * 2 * width * hidden
    return inputs + squares + weights
