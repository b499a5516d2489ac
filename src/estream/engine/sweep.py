"""One sweep: every layer in order, every needed page once."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np

from estream.engine.activations import SweepArrays
from estream.engine.batch import Batch
from estream.engine.device import Device
from estream.engine.embedding import EmbeddingReader
from estream.engine.pager import Pager
from estream.engine.timeline import COMPUTE, LAYER, Timeline
from estream.package.manifest import Page
from estream.package.package import FinalNorm


@dataclass
class _Layer:
    attention: Page
    router: Page
    shared: list[Page] = field(default_factory=list)
    experts: list[Page] = field(default_factory=list)


class Sweep:
    """Runs batches over a tape. ``compute_s`` is the time inside the device during the last run."""

    def __init__(
        self,
        tape: Sequence[Page],
        device: Device,
        pager: Pager,
        final_norm: FinalNorm,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._device = device
        self._pager = pager
        self._final_norm = final_norm
        kinds = ("attention", "router", "shared", "expert", "head")
        by_kind = {kind: [p for p in tape if p.spec.kind == kind] for kind in kinds}
        self._layers = [_Layer(a, r) for a, r in zip(by_kind["attention"], by_kind["router"], strict=True)]
        for page in by_kind["shared"]:
            self._layers[page.spec.layer].shared.append(page)
        for page in by_kind["expert"]:
            self._layers[page.spec.layer].experts.append(page)
        self._head = by_kind["head"]
        self.compute_s = 0.0
        self.timeline: Timeline | None = None

    def run(self, batch: Batch, activations: SweepArrays, embedding: EmbeddingReader) -> np.ndarray:
        """Logits float32 [wanted, vocabulary]; valid until the next run."""
        self.compute_s = 0.0
        embedding.finish(activations.residual[: batch.tokens])
        self._device.begin_sweep(batch, activations)
        # A router that was used to predict stays in the arena until its own layer routes.
        held, routers = ExitStack(), dict[int, int]()
        for index, layer in enumerate(self._layers):
            begin = self._clock()
            with self._pager.page(layer.attention) as address, self._computing(layer.attention):
                self._device.attention(layer.attention.spec, address)
            if index not in routers:
                routers[index] = held.enter_context(self._pager.page(layer.router))
            with self._computing(layer.router):
                routing = self._device.route(layer.router.spec, routers[index])
            held.close()
            used = routing.used
            self._pager.routed(index, used, layer.experts)
            if self._pager.predicts(index + 1):
                following = self._layers[index + 1].router
                routers[index + 1] = held.enter_context(self._pager.page(following))
                with self._computing(following):
                    self._pager.predict(index + 1, self._device.predict(following.spec, routers[index + 1]))
            self._device.begin_experts(routing)
            for page in layer.shared:
                with self._pager.page(page) as address, self._computing(page):
                    self._device.shared(page.spec, address)
            self._experts([page for page in layer.experts if page.spec.expert in used])
            self._device.end_experts()
            if self.timeline:
                self.timeline.span(LAYER, f"layer {index}", begin, self._clock())
        self._device.final_norm(*self._final_norm)
        for page in self._head:
            with self._pager.page(page) as address, self._computing(page):
                self._device.head(page.spec, address)
        return activations.logits

    def _experts(self, pages: Sequence[Page]) -> None:
        """Compute the pages in order, those together that are in memory together."""
        while pages:
            with self._pager.run(pages) as addresses:
                run = pages[: len(addresses)]
                with self._computing(*run):
                    self._device.experts([(page.spec, address) for page, address in zip(run, addresses, strict=True)])
            pages = pages[len(run) :]

    @contextmanager
    def _computing(self, *pages: Page) -> Iterator[None]:
        begin = self._clock()
        yield
        end = self._clock()
        self.compute_s += end - begin
        if self.timeline:
            first, last = pages[0].spec, pages[-1].spec
            what = str(first) if first is last else f"{first} to {last}"
            self.timeline.span(COMPUTE, first.kind, begin, end, page=what)
