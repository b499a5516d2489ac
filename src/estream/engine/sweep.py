"""One sweep: every layer in order, every needed page once."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from estream.devices.base import Device
from estream.engine.activations import Activations
from estream.engine.batch import Batch
from estream.engine.embedding import EmbeddingReader
from estream.engine.pager import Pager
from estream.package.manifest import Page


class Sweep:
    """Runs batches over a tape. ``compute_s`` is the time inside the device during the last run."""

    def __init__(self, tape: Sequence[Page], device: Device, pager: Pager, final_norm: np.ndarray) -> None:
        self._device = device
        self._pager = pager
        self._final_norm = final_norm
        self._layers: list[list[Page]] = []
        self._head = [page for page in tape if page.spec.kind == "head"]
        for page in tape:
            if page.spec.kind == "attention":
                self._layers.append([])
            if page.spec.kind != "head":
                self._layers[-1].append(page)
        self.compute_s = 0.0

    def run(self, batch: Batch, activations: Activations, embedding: EmbeddingReader) -> np.ndarray:
        """Logits float32 [prompts, vocabulary] at the last position of each prompt; valid until the next run."""
        self.compute_s = 0.0
        embedding.finish(activations.residual)
        self._device.begin_sweep(batch, activations)
        held = ExitStack()
        for layer, (attention, router, *experts) in enumerate(self._layers):
            with self._pager.page(attention) as address, self._computing():
                self._device.attention(attention.spec, address)
            address = router_address if self._pager.predicts(layer) else held.enter_context(self._pager.page(router))
            with self._computing():
                routing = self._device.route(router.spec, address)
            held.close()
            used = routing.used
            self._pager.routed(layer, used, experts)
            if self._pager.predicts(layer + 1):
                next_router = self._layers[layer + 1][1]
                router_address = held.enter_context(self._pager.page(next_router))
                with self._computing():
                    predicted = self._device.predict(next_router.spec, router_address)
                self._pager.predict(layer + 1, predicted)
            self._device.begin_experts(routing)
            for page in experts:
                if page.spec.expert in used:
                    with self._pager.page(page) as address, self._computing():
                        self._device.expert(page.spec, address)
            self._device.end_experts()
        self._device.final_norm(self._final_norm)
        for page in self._head:
            with self._pager.page(page) as address, self._computing():
                self._device.head(page.spec, address)
        return activations.logits

    @contextmanager
    def _computing(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.compute_s += time.perf_counter() - begin
