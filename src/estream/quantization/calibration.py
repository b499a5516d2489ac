"""Reading a text while converting, so that the codes of each expert are chosen for the inputs that it gets.

All windows of the text go through the model together, layer by layer: as soon as a page is made, it computes, on the same
kernels as in a sweep. So inputs of a layer carry the errors of the layers before it, the statistics of one matrix exist at a
time, and the checkpoint is read once. Method and measurements: docs/quantization.md.
"""

from dataclasses import dataclass, replace

import numpy as np

from estream import _native
from estream.checkpoint.huggingface import HfCheckpoint, widen
from estream.devices.cpu import CpuDevice
from estream.engine import machine
from estream.engine.activations import QuantizedArrays, plan_activations
from estream.engine.batch import Batch
from estream.errors import OptionError
from estream.models.config import ModelConfig, TensorRef
from estream.package.layout import MatrixPart, PageSpec, Quantization
from estream.quantization.statistics import InputStatistics, input_statistics
from estream.units import format_bytes

#: An expert that fewer tokens reach is calibrated with a sample of the layer's other tokens besides.
SCARCE_TOKENS = 256
_BORROWED_TOKENS = 512
#: Tokens by which the error of an expert's outputs is measured.
_MEASURED_TOKENS = 256

_ALIGNMENT = 4096


@dataclass(frozen=True)
class Codes:
    """Codes int8 [rows, inputs] and fp16 bits of scales uint16 [rows, inputs / group]; squared error of the outputs, and of
    the outputs themselves, over some tokens.
    """

    codes: np.ndarray
    scales: np.ndarray
    squared_error: float
    squared: float


class Calibration:
    """The text on its way through the model. Pages come in tape order: codes are chosen for one, then it computes."""

    def __init__(
        self, config: ModelConfig, quantization: Quantization, windows: list[np.ndarray], embeddings: np.ndarray, name: str
    ) -> None:
        """``embeddings`` float32 [tokens of all windows, hidden]; ``name`` is the text's, for the report."""
        threads = machine.default_threads()
        # The device leaves out what a last layer need not compute; here every layer is followed by another.
        self._config = replace(config, layers=config.layers + 1)
        self._device = CpuDevice(self._config, threads, False)
        self._chooser = _native.CodeChooser(threads)
        batch = Batch.of(windows)
        batch = replace(batch, wanted=batch.wanted[:1], wanted_counts=(1,) + (0,) * (len(windows) - 1))
        plan = plan_activations(self._config, quantization, batch, False, self._device.kv_element_bytes)
        _check_memory(plan.bytes, batch.tokens)
        self._memory = _aligned(plan.bytes)
        self._activations = plan.carve(self._memory)
        self._activations.residual[...] = embeddings
        self._device.begin_sweep(batch, self._activations)
        self._page = np.zeros(0, np.uint8)
        self._statistics: tuple[tuple[int, int], InputStatistics] | None = None
        self.facts = {"text": name, "tokens": batch.tokens, "windows": len(windows)}
        #: Experts of each layer that few tokens reached.
        self.scarce: dict[int, list[int]] = {}

    def compute(self, spec: PageSpec, page: np.ndarray) -> None:
        """Send the text through a page, uint8 [spec.bytes]."""
        if spec.kind == "head":
            return
        if self._page.size < spec.bytes:
            self._page = _aligned(spec.bytes)
        self._page[: spec.bytes] = page
        address = self._page.ctypes.data
        if spec.kind == "attention":
            self._device.attention(spec, address)
        elif spec.kind == "router":
            self._routing = self._device.route(spec, address)
            self._device.begin_experts(self._routing)
        elif self._routing.count(spec.expert):
            self._device.expert(spec, address)

    def choose(self, spec: PageSpec, part: MatrixPart, rows: np.ndarray, gate_up: np.ndarray) -> Codes:
        """Codes for a matrix of an expert, whose rows and whose gate (first half) and up rows are float32."""
        x, weights = self._inputs(spec)
        if part.name == "down":
            x = _gated(x, gate_up)
            statistics = input_statistics(x, weights, part.inputs)
        else:
            statistics = self._of_expert(spec, x, weights, part.inputs)
        codes = np.empty((len(rows), part.inputs), np.int8)
        scales = np.empty((len(rows), part.groups), np.uint16)
        self._chooser.choose(rows, statistics.moments, statistics.feedback, statistics.order, part.group, codes, scales)
        return _measured(codes, scales, rows, x[:: -(-len(x) // _MEASURED_TOKENS)])

    def _of_expert(self, spec: PageSpec, x: np.ndarray, weights: np.ndarray, inputs: int) -> InputStatistics:
        """Slices of an expert have the same inputs."""
        key = (spec.layer, spec.expert)
        if self._statistics is None or self._statistics[0] != key:
            self._statistics = None
            self._statistics = (key, input_statistics(x, weights, inputs))
        return self._statistics[1]

    def _inputs(self, spec: PageSpec) -> tuple[np.ndarray, np.ndarray]:
        """What reaches an expert, float32 [tokens, hidden], and the weights of its answers, float32 [tokens]."""
        tokens, weights = self._routing.of_expert(spec.expert)
        if len(tokens) < SCARCE_TOKENS:
            scarce = self.scarce.setdefault(spec.layer, [])
            if spec.expert not in scarce:
                scarce.append(spec.expert)
            usual = float(self._routing.weights.mean())
            others = np.arange(0, len(self._activations.residual), -(-len(self._activations.residual) // _BORROWED_TOKENS))
            tokens = np.concatenate([tokens, others.astype(np.int32)])
            weights = np.concatenate([weights, np.full(len(others), usual, np.float32)])
        source = self._activations.ffn_input
        assert isinstance(source, QuantizedArrays)
        grouped = source.codes[tokens].reshape(len(tokens), source.scales.shape[1], -1) * source.scales[tokens][:, :, None]
        return grouped.reshape(len(tokens), -1)[:, : self._config.hidden], weights


def read_embeddings(checkpoint: HfCheckpoint, ref: TensorRef, windows: list[np.ndarray]) -> np.ndarray:
    """The embedding rows of all tokens, float32 [tokens, hidden]; each row is read once."""
    used, places = np.unique(np.concatenate(windows), return_inverse=True)
    rows = np.concatenate([checkpoint.read_rows(ref, int(first), 1) for first in used])
    return widen(rows[places], checkpoint.dtype(ref))


def _gated(x: np.ndarray, gate_up: np.ndarray) -> np.ndarray:
    """The inputs of down: silu(gate) * up, float32 [tokens, width]."""
    gate, up = np.split(x @ gate_up.T, 2, axis=1)
    with np.errstate(over="ignore"):  # exp overflows to infinity where silu is 0
        return np.asarray(gate / (1.0 + np.exp(-gate)) * up)


def _measured(codes: np.ndarray, scales: np.ndarray, rows: np.ndarray, x: np.ndarray) -> Codes:
    groups = scales.shape[1]
    weights = codes.reshape(len(codes), groups, -1) * scales.view(np.float16).astype(np.float32)[:, :, None]
    difference = weights.reshape(codes.shape)[:, : rows.shape[1]] - rows
    return Codes(codes, scales, _squared(x @ difference.T), _squared(x @ rows.T))


def _squared(values: np.ndarray) -> float:
    return float(np.einsum("ij,ij->", values, values, dtype=np.float64))


def _aligned(size: int) -> np.ndarray:
    """Zeros uint8 [size] at an address that kernels accept."""
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size]


def _check_memory(needed: int, tokens: int) -> None:
    free = machine.largest_budget() - machine.resident_bytes()
    if needed > free:
        raise OptionError(
            f"--calibrate: {tokens} tokens take {format_bytes(needed)} of activations, {format_bytes(free)} are free; "
            "give a shorter text"
        )
