"""The port between engine and device. The engine decides which page comes when; the device computes with it.

A page is bound by the address at which it lies in the arena, and only while the engine lends it.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from estream.engine.activations import SweepArrays
from estream.engine.batch import Batch
from estream.engine.routing import RoutingLists
from estream.package.layout import PageSpec

#: A page and the address that the engine lends.
LentPage = tuple[PageSpec, int]


class Device(Protocol):
    """One sweep is begin_sweep, then for each layer attention, route, begin_experts, shared ..., experts ..., end_experts;
    then head.
    """

    @property
    def name(self) -> str: ...

    @property
    def kv_element_bytes(self) -> int: ...

    @property
    def timed_rows(self) -> tuple[int, ...]:
        """Row counts at which an expert is to be timed: where the device's speed changes."""

    def begin_sweep(self, batch: Batch, activations: SweepArrays) -> None:
        """Bind the arrays of one sweep; ``activations.residual`` holds the embedding rows."""

    def attention(self, spec: PageSpec, address: int) -> None:
        """Add the attention block of ``spec.layer`` to the residual. In the last layer only wanted rows go on."""

    def route(self, spec: PageSpec, address: int) -> RoutingLists:
        """Normalise the residual for the MLPs and choose the experts of each row; a dense layer has none.

        Of the lists the engine reads the counts alone; a device that keeps rows on its own side leaves the others empty.
        """

    def predict(self, spec: PageSpec, address: int) -> frozenset[int]:
        """Experts that the layer of this router, the next one, will use almost surely, judged by the residual as it is."""

    def begin_experts(self, routing: RoutingLists) -> None:
        """The routing of the experts to come."""

    def shared(self, spec: PageSpec, address: int) -> None:
        """Add the output of the MLP (or slice) that serves every row."""

    def experts(self, pages: Sequence[LentPage]) -> None:
        """Add the outputs of experts (or slices) to the residual of their rows, scaled by the routing weights, in order."""

    def end_experts(self) -> None:
        """All experts of the layer have been computed."""

    def final_norm(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        """The weights, float32 [hidden], by which wanted rows are normalised for the head; the bias of a layer norm."""

    def release(self) -> None:
        """Forget the arrays of the last sweep."""

    def head(self, spec: PageSpec, address: int) -> None:
        """Compute the logits of rows [spec.first, spec.first + spec.count) of the vocabulary."""


class LoadedDevice(Device, Protocol):
    """A device as a model owns it."""

    @property
    def variant(self) -> str:
        """What computes: kernels, or a chip."""

    @property
    def threads(self) -> int:
        """Threads of this process that compute."""

    @property
    def emulated(self) -> bool:
        """Whether it only stands for other hardware, so that its times say nothing."""

    @property
    def measurable(self) -> bool:
        """Whether the configurator's probes can time its pages."""

    def seconds(self) -> dict[str, float]:
        """Time spent so far in each kind of work, as far as the device tells."""

    def facts(self) -> dict[str, Any]:
        """What the last sweep's figures should say of it, as plain values."""

    def abandon(self) -> None:
        """In a forked child: never destroy what waits for threads that are gone."""
