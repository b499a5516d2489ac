"""The port between engine and device. The engine decides which page comes when; the device computes with it.

A page is bound by the address at which it lies in the arena, and only while the engine lends it: until the call returns.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from estream.engine.activations import SweepArrays
from estream.engine.batch import Batch
from estream.engine.routing import RoutingLists
from estream.package.layout import PageSpec

#: A page and the address that the engine lends: a multiple of 64 KiB into a 2 MiB-aligned arena.
LentPage = tuple[PageSpec, int]


class Device(Protocol):
    """What computes a sweep.

    The order of calls in one sweep: :meth:`begin_sweep`; for each layer :meth:`attention`, :meth:`route`, where the next
    layer's experts are prefetched :meth:`experts_to_prefetch`, :meth:`begin_experts`, :meth:`mlp` for each of its pages,
    :meth:`experts` any number of times, :meth:`end_experts`; then :meth:`final_norm`, and :meth:`head` for each head page.
    A sweep that fails stops anywhere in it, and the next one begins anew. Calls come from one thread at a time.

    T tokens of a batch, W wanted positions. Up to the last layer's attention all T rows are computed,
    behind it W rows.
    """

    @property
    def name(self) -> str: ...

    @property
    def kv_element_bytes(self) -> int:
        """Bytes of one element of keys and values."""

    @property
    def timed_rows(self) -> tuple[int, ...]:
        """Row counts at which an expert is to be timed: where the device's speed changes."""

    def begin_sweep(self, batch: Batch, activations: SweepArrays) -> None:
        """Bind the arrays of one sweep.

        ``activations`` lie in the arena at a multiple of 4096 bytes; ``activations.residual`` [T, hidden], in the floating
        dtype that the device chose, holds the embedding rows.
        """

    def attention(self, spec: PageSpec, address: int) -> None:
        """Add the attention block of ``spec.layer`` to the residual. In the last layer only wanted rows go on."""

    def route(self, spec: PageSpec, address: int) -> RoutingLists:
        """Normalise the residual for the MLPs and choose the experts of each row; a dense layer has none.

        The engine reads the counts of the lists alone; a device that keeps rows on its own side leaves the others empty.
        """

    def experts_to_prefetch(self, spec: PageSpec, address: int) -> frozenset[int]:
        """Experts that the next layer will use almost surely: its router, ``spec``, judges the residual as it is now."""

    def begin_experts(self, routing: RoutingLists) -> None:
        """The routing of the experts to come."""

    def mlp(self, spec: PageSpec, address: int) -> None:
        """Add the output of the MLP (or of a slice of it) that serves every row: a shared expert, or a dense layer's MLP."""

    def experts(self, pages: Sequence[LentPage]) -> None:
        """Add the outputs of experts (or slices) to the residual of their rows, scaled by the routing weights, in order."""

    def end_experts(self) -> None:
        """All experts of the layer have been computed."""

    def final_norm(self, weight: np.ndarray, bias: np.ndarray | None) -> None:
        """Normalise wanted rows for the head, and keep those that are wanted as they are; weights float32 [hidden], and the
        bias of a layer norm.
        """

    def release(self) -> None:
        """Forget the arrays of the last sweep."""

    def head(self, spec: PageSpec, address: int) -> None:
        """Compute the logits of ids [spec.first, spec.first + spec.count) for the wanted rows that need them, and give them to
        a :class:`~estream.engine.reduction.HeadReduction` over ``activations.head``.
        """


class LoadedDevice(Device, Protocol):
    """A device as a model owns it."""

    @property
    def variant(self) -> str:
        """What computes: kernels, or a chip."""

    @property
    def threads(self) -> int:
        """Threads of this process that compute."""

    @property
    def shares_prefixes(self) -> bool:
        """Whether it computes what prompts begin with alike once: batches with branches (:mod:`~estream.engine.prefixes`)."""

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
