"""The CPU device: binds pages and activations to the native kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from estream import _native
from estream.devices.cpu.activations import Activations
from estream.devices.cpu.attention import cpu_attention
from estream.devices.cpu.gated_delta import DeltaAttention
from estream.devices.cpu.head import CpuHead
from estream.devices.cpu.mlp import CpuMlp
from estream.devices.cpu.page import BoundPage, CpuLinear
from estream.engine.activations import SweepArrays
from estream.engine.batch import Batch
from estream.engine.device import LentPage
from estream.engine.routing import RoutingLists
from estream.models.config import ModelConfig
from estream.package.layout import PageSpec


class CpuDevice:
    """Computes on ``threads`` threads; with ``float_activations``, without quantising what the weights multiply."""

    def __init__(self, config: ModelConfig, threads: int, float_activations: bool) -> None:
        self._config = config
        self.threads = threads
        self._native = _native.CpuDevice(threads, float_activations)
        self._linear = CpuLinear(self._native, config, float_activations)
        self._attention = cpu_attention(config, self._linear)
        self._delta = DeltaAttention(config, self._linear) if config.attention.delta else None
        self._mlp = CpuMlp(config, self._linear)
        self._head = CpuHead(config, self._linear)

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def native(self) -> "_native.CpuDevice":
        return self._native

    @property
    def variant(self) -> str:
        """The kernel variant in use."""
        return str(self._native.variant)

    def seconds(self) -> dict[str, float]:
        """Time spent so far in each kind of work."""
        return self._native.seconds()

    @property
    def kv_element_bytes(self) -> int:
        """Size of an element of the keys and values in ``Activations``."""
        return self._native.kv_element_bytes

    @property
    def timed_rows(self) -> tuple[int, ...]:
        return (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

    @property
    def shares_prefixes(self) -> bool:
        return True

    @property
    def emulated(self) -> bool:
        return False

    @property
    def measurable(self) -> bool:
        return True

    def facts(self) -> dict[str, Any]:
        return {}

    def abandon(self) -> None:
        _native.abandon(self._native)

    def begin_sweep(self, batch: Batch, activations: SweepArrays) -> None:
        assert isinstance(activations, Activations)
        self._a = activations
        self._residual = activations.residual
        if self._config.embedding_factor != 1.0:
            self._residual *= np.float32(self._config.embedding_factor)
        self._attention.begin(batch, activations)
        if self._delta:
            self._delta.begin(batch, activations)
        self._mlp.begin(activations)
        self._head.begin(batch, activations)

    def release(self) -> None:
        del self._a, self._residual
        for part in (self._attention, self._delta, self._mlp, self._head):
            if part is not None:
                part.release()

    def attention(self, spec: PageSpec, address: int) -> None:
        linear = self._delta if spec.layer in self._config.attention.delta_layers else None
        self._residual = (linear or self._attention).run(BoundPage(spec, address), spec.layer == self._config.layers - 1)

    def route(self, spec: PageSpec, address: int) -> RoutingLists:
        return self._mlp.route(BoundPage(spec, address), self._residual)

    def experts_to_prefetch(self, spec: PageSpec, address: int) -> frozenset[int]:
        return self._mlp.experts_to_prefetch(BoundPage(spec, address), self._residual)

    def begin_experts(self, routing: RoutingLists) -> None:
        self._mlp.begin_experts(routing)

    def mlp(self, spec: PageSpec, address: int) -> None:
        self._mlp.mlp(BoundPage(spec, address), self._residual)

    def experts(self, pages: Sequence[LentPage]) -> None:
        self._mlp.experts(pages, self._residual)

    def end_experts(self) -> None:
        self._mlp.end_experts()

    def final_norm(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        norm = _native.Norm(
            weight.ctypes.data, 0 if bias is None else bias.ctypes.data, self._config.hidden, self._config.norm_eps
        )
        self._head.normalise(self._residual, norm)

    def head(self, spec: PageSpec, address: int) -> None:
        self._head.page(BoundPage(spec, address))
