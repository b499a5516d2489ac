"""One sweep: every layer in order, every needed page once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from estream.engine.activations import SweepArrays
from estream.engine.batch import Batch
from estream.engine.device import Device
from estream.engine.head import HeadArrays
from estream.engine.pager import Pager
from estream.engine.reads import Reads
from estream.engine.schedule import PrefetchStats
from estream.engine.sweep_plan import SweepPlan
from estream.engine.timeline import COMPUTE, LAYER
from estream.package.layout import MLP
from estream.package.manifest import Page
from estream.package.package import FinalNorm

#: Gets a residual [tokens, hidden], and in words whose it is; may raise.
Look = Callable[[np.ndarray, str], None]
#: Gets how many parts of a sweep are done, and how many there are: its layers and the head.
Advance = Callable[[int, int], None]


class Embedding(Protocol):
    """Embedding rows that were asked for before the sweep began. ``bytes`` were read for them."""

    bytes: int

    def finish(self, out: np.ndarray) -> None:
        """Fill ``out`` [tokens, hidden]."""


@dataclass(frozen=True)
class SweepResult:
    """The answers of the ``head`` lie in the arena until the next sweep. Times in seconds: ``compute_s`` inside
    the device, ``stall_s`` waiting for reads. ``unused_bytes`` were read ahead of the routing for experts without tokens,
    ``embedding_bytes`` for rows. ``counts`` int64 [layers, experts] say how many tokens each expert got.
    """

    head: HeadArrays
    compute_s: float
    stall_s: float
    unused_bytes: int
    prefetch: PrefetchStats
    counts: np.ndarray
    embedding_bytes: int


@dataclass
class _Layer:
    attention: Page
    router: Page
    mlp: list[Page] = field(default_factory=list)
    experts: list[Page] = field(default_factory=list)


class Sweep:
    """Runs batches over a tape, with one device and one pager."""

    def __init__(self, tape: Sequence[Page], device: Device, reads: Reads, pager: Pager, final_norm: FinalNorm) -> None:
        self._device = device
        self._reads = reads
        self._pager = pager
        self._final_norm = final_norm
        self._compute_s = 0.0
        self._counts: list[np.ndarray] = []
        #: Told 0 when a sweep can be cancelled, each layer, and all parts when it no longer can, however it ended.
        self.advance: Advance | None = None
        kinds = ("attention", "router", MLP, "expert", "head")
        by_kind = {kind: [p for p in tape if p.spec.kind == kind] for kind in kinds}
        self._layers = [_Layer(a, r) for a, r in zip(by_kind["attention"], by_kind["router"], strict=True)]
        for page in by_kind[MLP]:
            self._layers[page.spec.layer].mlp.append(page)
        for page in by_kind["expert"]:
            self._layers[page.spec.layer].experts.append(page)
        self._head = by_kind["head"]

    def run(
        self,
        batch: Batch,
        plan: SweepPlan,
        activations: SweepArrays,
        embedding: Embedding,
        arena_address: int,
        look: Look | None = None,
    ) -> SweepResult:
        """Sweep once. Where anything fails, reading stops and what is whole of the pinned pages is kept.

        ``look`` gets the residual of all tokens and whose it is: the embedding's, and each layer's but the last.

        Raises:
            ReadError: a page could not be read.
            CancelledError: somebody cancelled.

        """
        compute_s, stall_s = self._compute_s, self._reads.stall_s
        try:
            self._pager.begin(plan, arena_address)
            self._advanced(0)
            residual = activations.residual[: batch.tokens]
            embedding.finish(residual)
            look_at = partial(look, residual) if look else None
            if look_at:
                look_at("the embedding")
            self._device.begin_sweep(batch, activations)
            self._run_layers(look_at)
            self._run_head(plan)
            prefetch = self._pager.prefetch_stats
            self._pager.end()
        except BaseException:
            self._pager.abort()
            raise
        finally:
            self._advanced(len(self._layers) + 1)
        spent = self._compute_s - compute_s, self._reads.stall_s - stall_s
        counts = _stack(self._counts)
        return SweepResult(activations.head, *spent, self._pager.unused_bytes, prefetch, counts, embedding.bytes)

    def _run_layers(self, look_at: Callable[[str], None] | None) -> None:
        # A router that named experts to prefetch stays in the arena until its own layer routes.
        held, routers = ExitStack(), dict[int, int]()
        self._counts = []
        for index, layer in enumerate(self._layers):
            begin = self._reads.clock()
            with self._pager.page(layer.attention) as address, self._computing(layer.attention):
                self._device.attention(layer.attention.spec, address)
            if index not in routers:
                routers[index] = held.enter_context(self._pager.page(layer.router))
            with self._computing(layer.router):
                routing = self._device.route(layer.router.spec, routers[index])
            held.close()
            self._counts.append(routing.counts)
            used = routing.used
            self._pager.routed(index, used, layer.experts)
            if self._pager.prefetches(index + 1):
                following = self._layers[index + 1].router
                routers[index + 1] = held.enter_context(self._pager.page(following))
                with self._computing(following):
                    likely = self._device.experts_to_prefetch(following.spec, routers[index + 1])
                    self._pager.prefetch(index + 1, likely)
            self._device.begin_experts(routing)
            for page in layer.mlp:
                with self._pager.page(page) as address, self._computing(page):
                    self._device.mlp(page.spec, address)
            self._run_experts([page for page in layer.experts if page.spec.expert in used])
            self._device.end_experts()
            self._advanced(index + 1)
            if look_at and index + 1 < len(self._layers):
                look_at(f"layer {index}")
            if self._reads.timeline:
                self._reads.timeline.span(LAYER, f"layer {index}", begin, self._reads.clock())

    def _advanced(self, parts: int) -> None:
        if self.advance is not None:
            self.advance(parts, len(self._layers) + 1)

    def _run_experts(self, pages: Sequence[Page]) -> None:
        """Compute the pages in order, those together that are in memory together."""
        while pages:
            with self._pager.run(pages) as addresses:
                run = pages[: len(addresses)]
                with self._computing(*run):
                    self._device.experts([(page.spec, address) for page, address in zip(run, addresses, strict=True)])
            pages = pages[len(run) :]

    def _run_head(self, plan: SweepPlan) -> None:
        """Slice by slice, for the wanted positions."""
        self._device.final_norm(*self._final_norm)
        for page in self._head:
            if not plan.shape.head.reads(page.spec.first, page.spec.count):
                continue
            with self._pager.page(page) as address, self._computing(page):
                self._device.head(page.spec, address)

    @contextmanager
    def _computing(self, *pages: Page) -> Iterator[None]:
        begin = self._reads.clock()
        yield
        end = self._reads.clock()
        self._compute_s += end - begin
        if self._reads.timeline:
            first, last = pages[0].spec, pages[-1].spec
            what = str(first) if first is last else f"{first} to {last}"
            self._reads.timeline.span(COMPUTE, first.kind, begin, end, page=what)


def _stack(counts: Sequence[np.ndarray]) -> np.ndarray:
    """int64 [layers, experts] of one row a layer; a dense layer has none."""
    width = max(map(len, counts))
    return np.stack([row if len(row) else np.zeros(width, np.int64) for row in counts])
