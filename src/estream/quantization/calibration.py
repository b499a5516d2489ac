"""Reading a text while converting, so that the codes of each expert are chosen for the inputs that it gets.

The text goes through the model twice, side by side and layer by layer: through the pages as they are written, and through
pages of 8 bits with float activations, which stand for the model as it was. A page computes as soon as it is made, so the
inputs of a layer carry the errors of all layers before it, and its weights are moved to make up for them. The statistics of
one matrix exist at a time, and the checkpoint is read once. Method, sources and measurements: docs/quantization.md.
"""

from dataclasses import dataclass

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
from estream.quantization.statistics import Correction, InputStatistics, input_statistics
from estream.quantization.stream import TextStream

#: An expert that fewer tokens reach is calibrated with a sample of the layer's other tokens besides.
SCARCE_TOKENS = 256
_BORROWED_TOKENS = 512
#: Tokens by which the error of an expert's outputs is measured, and tokens whose inputs are taken at once.
_MEASURED_TOKENS = 256
_TOKENS_AT_ONCE = 4096
#: For each channel of the hidden state, so that moving the head's columns does not just learn the text.
_TOKENS_PER_CHANNEL = 4

_EXACT_BITS = 8


@dataclass(frozen=True)
class Codes:
    """Codes int8 [rows, inputs] and fp16 bits of scales uint16 [rows, inputs / group]; over some tokens, the squared error
    of the outputs against the model as it was, and those outputs squared.
    """

    codes: np.ndarray
    scales: np.ndarray
    squared_error: float
    squared: float


@dataclass(frozen=True)
class _Inputs:
    """Of one matrix: what it is given, what it was given before quantisation, both float32 [tokens, columns], and how much
    each token counts, float32 [tokens].
    """

    x: np.ndarray
    exact: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class _GateUp:
    """An expert's gate and up rows float32 [rows, columns], as they were and as they were chosen, and their bias [rows]."""

    before: np.ndarray
    now: np.ndarray
    bias: np.ndarray | None


class Calibration:
    """Pages come in tape order: codes are chosen for one, then the text goes through it."""

    def __init__(
        self,
        config: ModelConfig,
        quantization: Quantization,
        windows: list[np.ndarray],
        embeddings: np.ndarray,
        final_norm: FinalNorm,
        name: str,
    ) -> None:
        """``embeddings`` float32 [tokens of all windows, hidden]; ``final_norm`` as the package has it; ``name`` is the text's,
        for the report.
        """
        self._exact_layout = expert_layout(config, replace(quantization, expert_bits=_EXACT_BITS))
        self._written = TextStream(config, quantization, windows, embeddings, float_activations=False)
        self._exact = TextStream(config, quantization, windows, embeddings, float_activations=True)
        self._chooser = _native.CodeChooser(limits.default_threads())
        self._final_norm = final_norm
        self._correction: tuple[int, np.ndarray] | None = None
        self._head: np.ndarray | None = None
        self._inputs: tuple[tuple[int, int], _Inputs, InputStatistics] | None = None
        self._moe = config.moe
        self._gate_up: _GateUp | None = None
        self.facts: CalibrationText = {"text": name, "tokens": self._written.tokens, "windows": len(windows)}
        #: Experts of each layer that few tokens reached.
        self.scarce: dict[int, list[int]] = {}

    def exact_page(self, spec: PageSpec) -> PageSpec:
        """The page that stands for one as it was: an expert's with 8 bits, any other itself."""
        return replace(spec, layout=self._exact_layout) if spec.kind == "expert" else spec

    def compute(self, spec: PageSpec, page: np.ndarray, exact_page: np.ndarray) -> None:
        """Send the text through a page, uint8 [spec.bytes], and through the one that stands for it as it was."""
        self._written.compute(spec, page)
        self._exact.compute(self.exact_page(spec), exact_page)

    def choose(self, spec: PageSpec, part: MatrixPart, rows: np.ndarray, bias: np.ndarray | None = None) -> Codes:
        """Codes for the rows, float32 [outputs of the checkpoint, columns], of a matrix of an expert: gate_up, then down.
        ``bias`` float32 [outputs of the checkpoint] is that of gate_up, where experts have one.
        """
        inputs, statistics = self._of_expert(spec, spec.layout.matrix("gate_up").inputs)
        if part.name == "gate_up":
            target = rows + rows @ self._layer_correction(spec.layer)
        else:
            assert self._gate_up is not None
            pair, moe = self._gate_up, self._moe
            now, before = gated(inputs.x, pair.now, pair.bias, moe), gated(inputs.exact, pair.before, pair.bias, moe)
            inputs = _Inputs(now, before, inputs.weights)
            statistics = input_statistics(inputs.x, inputs.weights, part.inputs)
            correction = Correction(part.source_inputs)
            correction.add(inputs.x * inputs.weights[:, None], inputs.exact * inputs.weights[:, None])
            target = rows + rows @ correction.matrix()
        codes = np.empty((len(rows), part.inputs), np.int8)
        scales = np.empty((len(rows), part.groups), np.uint16)
        self._chooser.choose(target, statistics.moments, statistics.feedback, statistics.order, part.group, codes, scales)
        chosen = codes.reshape(*scales.shape, -1) * scales.view(np.float16).astype(np.float32)[:, :, None]
        chosen = chosen.reshape(codes.shape)[:, : part.source_inputs]
        self._gate_up = _GateUp(rows, chosen, bias) if part.name == "gate_up" else None
        some = slice(None, None, -(-len(inputs.x) // _MEASURED_TOKENS))
        outputs = inputs.exact[some] @ rows.T
        return Codes(codes, scales, _squared(inputs.x[some] @ chosen.T - outputs), _squared(outputs))

    def head(self, rows: np.ndarray) -> np.ndarray:
        """Rows of the head, float32 [any, hidden], moved to make up for the errors of all layers before it."""
        hidden = rows.shape[1]
        if self._written.tokens < _TOKENS_PER_CHANNEL * hidden:
            return rows
        if self._head is None:
            correction = Correction(hidden)
            for first in range(0, self._written.tokens, _TOKENS_AT_ONCE):
                part = slice(first, first + _TOKENS_AT_ONCE)
                correction.add(*(stream.normalised(part, self._final_norm) for stream in (self._written, self._exact)))
            self._head = correction.matrix()
        return np.asarray(rows + rows @ self._head)

    def _of_expert(self, spec: PageSpec, padded: int) -> tuple[_Inputs, InputStatistics]:
        """What reaches an expert; slices of one have the same inputs."""
        key = (spec.layer, spec.expert)
        if self._inputs is None or self._inputs[0] != key:
            self._inputs = None
            tokens, weights = self._tokens(spec)
            inputs = _Inputs(self._written.expert_inputs(tokens), self._exact.expert_inputs(tokens), weights)
            self._inputs = (key, inputs, input_statistics(inputs.x, weights, padded))
        return self._inputs[1:]

    def _tokens(self, spec: PageSpec) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of an expert and the weights of its answers to them."""
        routing = self._written.routing
        tokens, weights = routing.of_expert(spec.expert)
        if len(tokens) >= SCARCE_TOKENS:
            return tokens, weights
        self.scarce.setdefault(spec.layer, []).append(spec.expert)
        others = np.arange(0, self._written.tokens, -(-self._written.tokens // _BORROWED_TOKENS), dtype=np.int32)
        usual = np.full(len(others), routing.weights.mean(), np.float32)
        return np.concatenate([tokens, others]), np.concatenate([weights, usual])

    def _layer_correction(self, layer: int) -> np.ndarray:
        if self._correction is None or self._correction[0] != layer:
            self._correction = None
            correction = Correction(self._written.expert_inputs(slice(0, 1)).shape[1])
            for first in range(0, self._written.tokens, _TOKENS_AT_ONCE):
                part = slice(first, first + _TOKENS_AT_ONCE)
                correction.add(self._written.expert_inputs(part), self._exact.expert_inputs(part))
            self._correction = (layer, correction.matrix())
        return self._correction[1]


def read_embeddings(checkpoint: CheckpointSource, ref: TensorRef, windows: list[np.ndarray]) -> np.ndarray:
    """The embedding rows of all tokens, float32 [tokens, hidden]; each row is read once."""
    used, places = np.unique(np.concatenate(windows), return_inverse=True)
    rows = np.concatenate([checkpoint.read_rows(ref, int(first), 1) for first in used])
    return widen(rows[places], checkpoint.dtype(ref))


def gated(x: np.ndarray, gate_up: np.ndarray, bias: np.ndarray | None, moe: MoeConfig) -> np.ndarray:
    """What down is given, float32 [tokens, width], for gate rows, then up rows: silu(gate) * up, or what a clamped gate makes
    of them (``MoeConfig``).
    """
    products = x @ gate_up.T
    gate, up = np.split(products if bias is None else products + bias, 2, axis=1)
    alpha = np.float32(1.0)
    if moe.swiglu_limit > 0.0:
        limit, alpha = np.float32(moe.swiglu_limit), np.float32(moe.swiglu_alpha)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit) + np.float32(1.0)
    with np.errstate(over="ignore"):  # exp overflows to infinity where the gate is shut
        return np.asarray(gate / (1.0 + np.exp(-alpha * gate)) * up)


def _squared(values: np.ndarray) -> float:
    return float(np.einsum("ij,ij->", values, values, dtype=np.float64))
