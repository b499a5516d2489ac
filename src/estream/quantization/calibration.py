"""Calibration: chooses each expert's codes for the inputs that it gets from a text, and tallies which experts it uses.

The text goes through two models at once, layer by layer: the quantised one, page by page as it is written, and a reference with
8-bit experts and float activations, which stands for the unquantised model. The inputs of a layer carry the errors of all
layers before it; its weights are corrected for these errors. Only one matrix has statistics in memory at a time, and the
checkpoint is read once. Method, sources and measurements: docs/quantization.md.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from msgspec.structs import replace

from estream import _native
from estream.checkpoint.decoders import widen
from estream.checkpoint.source import CheckpointSource
from estream.host import limits
from estream.models.config import ModelConfig, MoeConfig, TensorRef
from estream.package.layout import PageSpec, Quantization, expert_layout
from estream.package.package import FinalNorm
from estream.package.parts import MatrixPart
from estream.package.quantization_report import CalibrationText
from estream.quantization.calibration_memory import expert_bytes, most_tokens
from estream.quantization.statistics import Correction, InputStatistics, input_statistics
from estream.quantization.stream import TextStream
from estream.quantization.use import UseTally

#: An expert with fewer tokens also gets a sample of the layer's other tokens.
SCARCE_TOKENS = 256
_BORROWED_TOKENS = 512
#: At most this many tokens measure the error of an expert's outputs.
_MEASURED_TOKENS = 256
#: Tokens whose inputs are in memory at once.
_TOKENS_AT_ONCE = 4096
#: The head is corrected only with this many tokens per channel of the hidden state; fewer would overfit to the text.
_TOKENS_PER_CHANNEL = 4

_REFERENCE_BITS = 8


@dataclass(frozen=True)
class Codes:
    """Codes int8 [rows, inputs] and fp16 bits of scales, uint16 [rows, inputs / group].

    ``squared_error`` sums the squared error of the outputs against the reference over the measured tokens, ``squared`` the
    squares of the reference's outputs.
    """

    codes: np.ndarray
    scales: np.ndarray
    squared_error: float
    squared: float


@dataclass(frozen=True)
class _Inputs:
    """The inputs of one matrix: ``x`` in the quantised model and ``reference``, float32 [tokens, columns], and the weight
    of each token, float32 [tokens].
    """

    x: np.ndarray
    reference: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class _GateUp:
    """An expert's gate and up rows float32 [rows, columns], ``source`` before and ``chosen`` after quantisation, and their
    bias [rows].
    """

    source: np.ndarray
    chosen: np.ndarray
    bias: np.ndarray | None


class Calibration:
    """Takes pages in tape order: first ``choose`` or ``head`` for the matrices of a page, then ``compute`` with the page.

    ``use`` is what the quantised model's routers have chosen so far.
    """

    #: Copies that both models compute with and the reference's page, which may be twice as large, in pages of the largest size.
    PAGES = 5

    def __init__(
        self,
        config: ModelConfig,
        quantization: Quantization,
        windows: list[np.ndarray],
        embeddings: np.ndarray,
        final_norm: FinalNorm,
        name: str,
    ) -> None:
        """Start both models at the embeddings.

        Args:
            config: the model.
            quantization: of the package that is written.
            windows: token ids of the text, int32 [at most WINDOW] each.
            embeddings: float32 [tokens of all windows, hidden].
            final_norm: as the package has it, equalised.
            name: of the text, for the report.

        Raises:
            OptionError: the activations do not fit into memory.

        """
        self._reference_layout = expert_layout(config, replace(quantization, expert_bits=_REFERENCE_BITS))
        self._quantized = TextStream(config, quantization, windows, embeddings, float_activations=False)
        self._reference = TextStream(config, quantization, windows, embeddings, float_activations=True)
        self.use = UseTally(config, windows)
        self._chooser = _native.CodeChooser(limits.default_threads())
        self._final_norm = final_norm
        self._correction: tuple[int, np.ndarray] | None = None
        self._head: np.ndarray | None = None
        self._inputs: tuple[tuple[int, int], _Inputs, InputStatistics] | None = None
        self._moe = config.moe
        self._counted = most_tokens(config, self._quantized.tokens)
        self._expert_bytes = partial(expert_bytes, config, quantization)
        self._gate_up: _GateUp | None = None
        self.facts: CalibrationText = {"text": name, "tokens": self._quantized.tokens, "windows": len(windows)}
        #: Experts with fewer than SCARCE_TOKENS tokens, by layer.
        self.scarce: dict[int, list[int]] = {}

    def reference_page(self, spec: PageSpec) -> PageSpec:
        """Return the reference's page for a page: an expert's with 8 bits, any other unchanged."""
        return replace(spec, layout=self._reference_layout) if spec.kind == "expert" else spec

    def compute(self, spec: PageSpec, page: np.ndarray, reference_page: np.ndarray) -> None:
        """Compute both models' activations through a page, uint8 [spec.bytes], and the reference's page."""
        self._quantized.compute(spec, page)
        self._reference.compute(self.reference_page(spec), reference_page)
        if spec.kind == "router":
            self.use.add(self._quantized.routing)

    def choose(self, spec: PageSpec, part: MatrixPart, rows: np.ndarray, bias: np.ndarray | None = None) -> Codes:
        """Choose the codes of an expert's matrix: ``gate_up`` first, then ``down``.

        Args:
            spec: the expert's page.
            part: the matrix.
            rows: the checkpoint's weights, float32 [outputs, columns].
            bias: float32 [outputs] of ``gate_up``, if the experts have biases.

        """
        inputs, statistics = self._expert_inputs(spec, spec.layout.matrix("gate_up").inputs)
        if part.name == "gate_up":
            target = rows + rows @ self._layer_correction(spec.layer)
        else:
            assert self._gate_up is not None
            gate_up, moe = self._gate_up, self._moe
            inputs = _Inputs(
                swiglu(inputs.x, gate_up.chosen, gate_up.bias, moe),
                swiglu(inputs.reference, gate_up.source, gate_up.bias, moe),
                inputs.weights,
            )
            statistics = input_statistics(inputs.x, inputs.weights, part.inputs)
            correction = Correction(part.source_inputs)
            correction.add(inputs.x * inputs.weights[:, None], inputs.reference * inputs.weights[:, None])
            target = rows + rows @ correction.matrix()
        codes = np.empty((len(rows), part.inputs), np.int8)
        scales = np.empty((len(rows), part.groups), np.uint16)
        self._chooser.choose(target, statistics.moments, statistics.feedback, statistics.order, part.group, codes, scales)
        chosen = codes.reshape(*scales.shape, -1) * scales.view(np.float16).astype(np.float32)[:, :, None]
        chosen = chosen.reshape(codes.shape)[:, : part.source_inputs]
        self._gate_up = _GateUp(rows, chosen, bias) if part.name == "gate_up" else None
        measured = slice(None, None, -(-len(inputs.x) // _MEASURED_TOKENS))
        outputs = inputs.reference[measured] @ rows.T
        return Codes(codes, scales, _sum_of_squares(inputs.x[measured] @ chosen.T - outputs), _sum_of_squares(outputs))

    def head(self, rows: np.ndarray) -> np.ndarray:
        """Correct rows of the head, float32 [any, hidden], for the errors of all layers before it."""
        hidden = rows.shape[1]
        if self._quantized.tokens < _TOKENS_PER_CHANNEL * hidden:
            return rows
        if self._head is None:
            correction = Correction(hidden)
            for first in range(0, self._quantized.tokens, _TOKENS_AT_ONCE):
                tokens = slice(first, first + _TOKENS_AT_ONCE)
                correction.add(*(s.normalised(tokens, self._final_norm) for s in (self._quantized, self._reference)))
            self._head = correction.matrix()
        return np.asarray(rows + rows @ self._head)

    def _expert_inputs(self, spec: PageSpec, padded_inputs: int) -> tuple[_Inputs, InputStatistics]:
        """The inputs of an expert and their statistics. All slices of an expert share them."""
        key = (spec.layer, spec.expert)
        if self._inputs is None or self._inputs[0] != key:
            self._inputs = None
            tokens, weights = self._expert_tokens(spec)
            self._check_memory(spec, len(tokens))
            inputs = _Inputs(self._quantized.expert_inputs(tokens), self._reference.expert_inputs(tokens), weights)
            self._inputs = (key, inputs, input_statistics(inputs.x, weights, padded_inputs))
        return self._inputs[1:]

    def _check_memory(self, spec: PageSpec, tokens: int) -> None:
        """Raise BudgetError where an expert has more tokens than was counted on, and they do not fit."""
        if tokens > self._counted:
            limits.fitting(size := self._expert_bytes(tokens), size, f"--calibrate: {spec} with {tokens} of the text's tokens")

    def _expert_tokens(self, spec: PageSpec) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of an expert and its routing weights; borrowed tokens get the layer's mean weight."""
        routing = self._quantized.routing
        tokens, weights = routing.of_expert(spec.expert)
        if len(tokens) >= SCARCE_TOKENS:
            return tokens, weights
        self.scarce.setdefault(spec.layer, []).append(spec.expert)
        borrowed = np.arange(0, self._quantized.tokens, -(-self._quantized.tokens // _BORROWED_TOKENS), dtype=np.int32)
        mean_weight = np.full(len(borrowed), routing.weights.mean(), np.float32)
        return np.concatenate([tokens, borrowed]), np.concatenate([weights, mean_weight])

    def _layer_correction(self, layer: int) -> np.ndarray:
        """The correction of gate and up, float32 [hidden, hidden]: one for all experts of a layer, from all tokens."""
        if self._correction is None or self._correction[0] != layer:
            self._correction = None
            correction = Correction(self._quantized.expert_inputs(slice(0, 1)).shape[1])
            for first in range(0, self._quantized.tokens, _TOKENS_AT_ONCE):
                tokens = slice(first, first + _TOKENS_AT_ONCE)
                correction.add(self._quantized.expert_inputs(tokens), self._reference.expert_inputs(tokens))
            self._correction = (layer, correction.matrix())
        return self._correction[1]


def read_embeddings(checkpoint: CheckpointSource, ref: TensorRef, windows: list[np.ndarray]) -> np.ndarray:
    """Read the embedding rows of all tokens: float32 [tokens, hidden]. A row that occurs twice is read once."""
    ids, row_of_token = np.unique(np.concatenate(windows), return_inverse=True)
    rows = np.concatenate([checkpoint.read_rows(ref, int(token), 1) for token in ids])
    return widen(rows[row_of_token], checkpoint.dtype(ref))


def swiglu(x: np.ndarray, gate_up: np.ndarray, bias: np.ndarray | None, moe: MoeConfig) -> np.ndarray:
    """The input of ``down``, float32 [tokens, intermediate_size]: silu(gate) * up, or its clamped form (``MoeConfig``).

    ``gate_up`` float32 [2 * intermediate_size, hidden] has the gate rows first, then the up rows; ``bias`` likewise.
    """
    products = x @ gate_up.T
    gate, up = np.split(products if bias is None else products + bias, 2, axis=1)
    alpha = np.float32(1.0)
    if moe.swiglu_limit > 0.0:
        limit, alpha = np.float32(moe.swiglu_limit), np.float32(moe.swiglu_alpha)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit) + np.float32(1.0)
    with np.errstate(over="ignore"):  # exp overflows to infinity for a very negative gate; the result is 0, as it should be
        return np.asarray(gate / (1.0 + np.exp(-alpha * gate)) * up)


def _sum_of_squares(values: np.ndarray) -> float:
    return float(np.einsum("ij,ij->", values, values, dtype=np.float64))
