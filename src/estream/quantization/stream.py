"""Runs the calibration text through a model page by page, with the kernels of a sweep, all windows in one batch."""

import numpy as np
from msgspec import structs

from estream.devices.cpu.activations import ActivationPlan, ActivationSizes, QuantizedArrays
from estream.devices.cpu.device import CpuDevice
from estream.engine.batch import Batch
from estream.engine.routing import RoutingLists
from estream.engine.wanted import Hidden
from estream.errors import OptionError
from estream.host import limits
from estream.host.sizes import format_bytes
from estream.models.config import ModelConfig
from estream.package.layout import MLP, PageSpec, Quantization
from estream.package.package import FinalNorm

_ALIGNMENT = 4096


class TextStream:
    """The activations of ``windows`` of token ids, which start at ``embeddings`` float32 [tokens, hidden].

    Raises:
        OptionError: the activations do not fit into memory.

    """

    def __init__(
        self,
        config: ModelConfig,
        quantization: Quantization,
        windows: list[np.ndarray],
        embeddings: np.ndarray,
        *,
        float_activations: bool,
    ) -> None:
        self._config = _with_all_tokens(config)
        self._device = CpuDevice(self._config, limits.default_threads(), float_activations)
        batch = _batch(windows)
        plan = activation_plan(config, quantization, windows, float_activations=float_activations)
        _check_memory(plan.bytes, batch.tokens)
        self._memory = _aligned(plan.bytes)
        # Touch every page now, so that the check of the next stream sees how much memory is left.
        self._memory[::_ALIGNMENT] = 0
        self._activations = plan.carve(self._memory)
        self._activations.residual[...] = embeddings
        self._device.begin_sweep(batch, self._activations)
        self._page = _aligned(0)
        self.tokens = batch.tokens
        self.routing: RoutingLists

    def compute(self, spec: PageSpec, page: np.ndarray) -> None:
        """Compute with the next page of the tape, uint8 [spec.bytes]. Head pages do nothing."""
        if spec.kind == "head":
            return
        if self._page.size < spec.bytes:
            self._page = _aligned(spec.bytes)
        self._page[: spec.bytes] = page
        address = self._page.ctypes.data
        if spec.kind == "attention":
            self._device.attention(spec, address)
        elif spec.kind == "router":
            self.routing = self._device.route(spec, address)
            self._device.begin_experts(self.routing)
        elif spec.kind == MLP:
            self._device.mlp(spec, address)
        elif self.routing.count(spec.expert):
            self._device.experts([(spec, address)])

    def expert_inputs(self, tokens: np.ndarray | slice) -> np.ndarray:
        """Return the experts' inputs in the current layer, float32 [tokens, hidden], dequantised if they are quantised."""
        source, hidden = self._activations.ffn_input, self._config.hidden
        if not isinstance(source, QuantizedArrays):
            return source[tokens, :hidden]
        codes, scales = source.codes[tokens], source.scales[tokens]
        return np.asarray((codes.reshape(*scales.shape, -1) * scales[:, :, None]).reshape(codes.shape)[:, :hidden])

    def normalised(self, tokens: slice, norm: FinalNorm) -> np.ndarray:
        """Return the residual of some tokens after the final norm, float32 [tokens, hidden]."""
        x = self._activations.residual[tokens]
        if self._config.norm == "layer":
            x = x - x.mean(1, keepdims=True)
        rms = np.sqrt(np.square(x).mean(1, keepdims=True) + np.float32(self._config.norm_eps))
        return np.asarray(x / rms * norm.weight if norm.bias is None else x / rms * norm.weight + norm.bias)


def activation_plan(
    config: ModelConfig, quantization: Quantization, windows: list[np.ndarray], *, float_activations: bool
) -> ActivationPlan:
    """The arrays of a :class:`TextStream`."""
    every = _with_all_tokens(config)
    element_bytes = CpuDevice(every, 1, float_activations).kv_element_bytes
    return ActivationPlan(ActivationSizes(every, quantization, _batch(windows).shape, float_activations, element_bytes))


def _with_all_tokens(config: ModelConfig) -> ModelConfig:
    """The device computes only the wanted tokens in the last layer. One more layer, so that it computes all tokens."""
    return structs.replace(config, layers=config.layers + 1)


def _batch(windows: list[np.ndarray]) -> Batch:
    return Batch.of(windows, wanted=[Hidden()] * len(windows))


def _aligned(size: int) -> np.ndarray:
    """Zeros uint8 [size] at an address with the alignment of pages."""
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size]


def _check_memory(needed: int, tokens: int) -> None:
    free = limits.largest_budget() - limits.resident_bytes()
    if needed > free:
        raise OptionError(
            f"--calibrate: {tokens} tokens take {format_bytes(needed)} of activations, {format_bytes(free)} are free; "
            "give a shorter text"
        )
