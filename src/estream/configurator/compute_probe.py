"""Probes of the device: how long each kind of page takes as a function of token counts, with the package's own pages."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from statistics import median

import numpy as np

from estream import _native
from estream.configurator.costs import FULL, MeasuredCosts, attention_kind
from estream.configurator.curve import Curve, Point
from estream.configurator.storage_probe import Scratch, StorageProbe
from estream.engine.activations import ArraysPlanner
from estream.engine.batch import Batch, BatchShape
from estream.engine.device import Device
from estream.engine.reads import PAGES_FILE
from estream.engine.routing import RoutingLists
from estream.errors import ReadError
from estream.host.sizes import MiB
from estream.package.layout import MLP
from estream.package.manifest import Page
from estream.package.package import Package

_TOKENS = (1, 8, 64, 256, 512, 1024, 2048, 4096)
#: The table of the last layer's attention.
_LAST = "last"
#: Calls of an expert or of the head in one round.
_CALLS = 5
#: Calls before and after a look at interference, and how long that takes.
_ALONE, _PAIR_SECONDS = 8, 0.1
#: Lengths whose attention takes longer are not measured; the curve goes on from the last two.
_LONGEST_SECONDS = 0.4
_LONG_SECONDS = 0.08
#: Experts that take turns, so that weights come from memory as in a sweep and not from a cache.
_EXPERTS, _EXPERT_BYTES = 24, 96 * MiB
#: Random numbers that the residual is filled with, over and over.
_NOISE = 1 << 16


class ComputeProbe:
    """Holds a few pages of each kind in the arena and times the device on them."""

    def __init__(self, package: Package, device: Device, plan_arrays: ArraysPlanner, scratch: Scratch, page_bytes: int) -> None:
        """The first ``page_bytes`` of the scratch are for pages, the rest for activations."""
        self._package, self._device, self._plan_arrays = package, device, plan_arrays
        self._config, self._tape = package.manifest.config, package.manifest.tape
        self._activations = scratch.part(page_bytes, len(scratch))
        self._pages = scratch.part(0, page_bytes)
        self._used = 0
        self._samples: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._noise = np.random.default_rng(0).standard_normal(_NOISE, np.float32)

    def measure(self) -> None:
        """One round over every table: the first layer of each kind, the last one and the head."""
        lengths = self._lengths()
        for kind, layer in self._layers().items():
            self._attention(kind, layer, lengths)
        self._attention(_LAST, self._config.layers - 1, lengths)
        self._router(lengths)
        self._mlps("expert", self._moe_layer, lengths[-1])
        if self._shared is not None:
            self._mlps(MLP, self._shared.spec.layer, lengths[-1])
        self._head()

    def costs(self) -> MeasuredCosts:
        """What the rounds so far came to."""
        attention = {kind: self._curve(kind) for kind in self._layers()}
        shared, head = self._shared, self._first_head
        return MeasuredCosts(
            attention_curves=attention,
            last_attention=self._curve(_LAST),
            attention_square=square_part(attention[FULL]),
            router_curve=self._curve("router"),
            expert_curve=self._curve("expert"),
            head_curve=self._curve("head"),
            head_bytes=head.bytes,
            shared_curve=None if shared is None else self._curve(MLP),
            shared_bytes=1 if shared is None else shared.bytes,
        )

    def _layers(self) -> dict[str, int]:
        """The layer whose attention stands for each kind."""
        layers = {attention_kind(self._config, n): n for n in reversed(range(self._config.layers - 1))}
        layers.setdefault(FULL, max(0, self._config.layers - 1))
        return layers

    def _curve(self, table: str) -> Curve:
        return Curve.of(Point.of(x, samples) for x, samples in self._samples[table].items())

    @property
    def _first_head(self) -> Page:
        return next(p for p in self._tape if p.spec.kind == "head")

    @property
    def _shared(self) -> Page | None:
        return next((p for p in self._tape if p.spec.kind == MLP), None)

    @property
    def _moe_layer(self) -> int:
        return next(p.spec.layer for p in self._tape if p.spec.kind == "expert")

    @contextmanager
    def working(self) -> Iterator[tuple[Callable[[], None], Scratch]]:
        """An expert's computation over a usual number of rows, and memory that it leaves alone."""
        rows = min(128, self._lengths()[-1])
        with self._loaded("expert", self._moe_layer, len(self._pages) // 4) as pages, self._bound(self._tokens_for(rows)):
            yield self._expert_call(pages, rows), self._pages.part(self._used, len(self._pages))

    def _lengths(self) -> list[int]:
        """Token counts whose activations fit, within the context."""
        room = len(self._activations)
        fitting = [n for n in _TOKENS if n <= self._config.context and self._plan_arrays(BatchShape.of_prompt(n)).bytes <= room]
        return fitting or [1]

    @contextmanager
    def _bound(self, tokens: int, wanted: Sequence[int] | None = None) -> Iterator[None]:
        """A sweep of one prompt is begun on the device, with random activations; its last row is wanted, or these."""
        batch = Batch.of([np.zeros(tokens, np.int32)], [wanted])
        activations = self._plan_arrays(batch.shape).carve(self._activations.memory)
        rows = activations.residual.reshape(-1)
        for begin in range(0, len(rows), _NOISE):
            rows[begin : begin + _NOISE] = self._noise[: len(rows) - begin]
        self._device.begin_sweep(batch, activations)
        yield

    @contextmanager
    def _loaded(self, kind: str, layer: int, most: int = _EXPERT_BYTES) -> Iterator[list[tuple[Page, int]]]:
        """Pages of one kind and layer with their addresses; their memory is free again behind the block."""
        before = self._used
        chosen: list[tuple[Page, int]] = []
        for page in (p for p in self._tape if p.spec.kind == kind and p.spec.layer == layer):
            full = chosen and (len(chosen) == _EXPERTS or self._used - before + page.padded_bytes > most)
            if full or self._used + page.padded_bytes > len(self._pages):
                break
            chosen.append((page, self._load(page)))
        yield chosen
        self._used = before

    def _load(self, page: Page) -> int:
        address = self._pages.address + self._used
        reader = self._package.open_reader(4, 2 * MiB, True)
        ticket = reader.submit(PAGES_FILE, page.offset, address, page.padded_bytes, [(0, page.bytes, page.checksum, True)])
        while (outcome := reader.wait(ticket, 0.1))[0] == "pending":
            pass
        if outcome[0] != "ready":
            raise ReadError(f"{self._package.pages_path}: {page.spec} cannot be read ({outcome[0]}); verify the package")
        self._used += page.padded_bytes
        return address

    def _attention(self, table: str, layer: int, lengths: Sequence[int]) -> None:
        """A layer's attention as a function of one prompt's length; in the last layer one row goes on."""
        samples = self._samples[table]
        with self._loaded("attention", layer) as pages:
            (page, address), *_ = pages
            # The first round finds out which lengths take too long.
            for tokens in samples or lengths:
                with self._bound(tokens):
                    samples[tokens] += _samples(partial(self._device.attention, page.spec, address))
                if min(samples[tokens]) > _LONGEST_SECONDS:
                    break

    def _router(self, lengths: Sequence[int]) -> None:
        with self._loaded("router", self._moe_layer) as pages:
            (page, address), *_ = pages
            for tokens in lengths:
                with self._bound(tokens):
                    self._samples["router"][tokens] += _samples(partial(self._device.route, page.spec, address))

    def _mlps(self, kind: str, layer: int, most: int) -> None:
        with self._loaded(kind, layer) as pages:
            for rows in (n for n in self._device.timed_rows if n <= most):
                with self._bound(self._tokens_for(rows) if kind == "expert" else rows):
                    run = self._expert_call(pages, rows) if kind == "expert" else self._shared_call(pages)
                    self._samples[kind][rows] += [timed(run) for _ in range(_CALLS)]

    def _tokens_for(self, rows: int) -> int:
        """The tokens of which an expert usually gets so many: its rows lie scattered among them."""
        moe = self._config.moe
        return max(rows, min(rows * moe.experts // moe.top_k, self._lengths()[-1]))

    def _expert_call(self, pages: Sequence[tuple[Page, int]], rows: int) -> Callable[[], None]:
        """Calls that take one page after another, each for all rows."""
        experts, turn = self._config.moe.experts, cycle(pages)
        among = np.random.default_rng(rows).permutation(self._tokens_for(rows))[:rows]
        tokens, weights = np.sort(among).astype(np.int32), np.full(rows, 1e-6, np.float32)
        # The device finds the rows of any expert in these lists.
        lists = {p.spec.expert: RoutingLists(tokens, weights, _only(p.spec.expert, experts, rows)) for p, _ in pages}

        def run() -> None:
            page, address = next(turn)
            self._device.begin_experts(lists[page.spec.expert])
            self._device.experts([(page.spec, address)])
            self._device.end_experts()

        return run

    def _shared_call(self, pages: Sequence[tuple[Page, int]]) -> Callable[[], None]:
        turn = cycle(pages)

        def run() -> None:
            page, address = next(turn)
            self._device.mlp(page.spec, address)

        return run

    def _head(self) -> None:
        with self._loaded("head", self._first_head.spec.layer) as pages:
            turn = cycle(pages)
            norm = np.ones(self._config.hidden, np.float32)

            def run() -> None:
                each, address = next(turn)
                self._device.head(each.spec, address)

            for rows in (1, 16, 64):
                if rows > self._config.context:
                    break
                with self._bound(rows, range(rows)):
                    self._device.final_norm(norm, None)
                    self._samples["head"][rows] += [timed(run) for _ in range(_CALLS)]


def square_part(attention: Curve) -> float:
    """Seconds per squared token: the second difference of the two longest lengths, one twice the other."""
    if len(attention.points) < 3 or attention.points[-1].x < 512:
        return 0.0
    half, whole = attention.points[-2], attention.points[-1]
    return max(0.0, (whole.value - whole.x / half.x * half.value) / (whole.x**2 - whole.x * half.x))


def interference(work: Callable[[], None], storage: StorageProbe, reader: "_native.Reader", rate: float) -> tuple[float, float]:
    """By what factors computing takes longer while lanes read, and reading while all threads compute.

    Both are ratios of neighbouring moments, so that what else the machine does cancels out.
    """
    alone = [timed(work) for _ in range(_ALONE)]
    size = int(rate * median(alone) * max(3, int(_PAIR_SECONDS / max(median(alone), 1e-6))))
    reading = storage.pages_seconds(reader, size)
    begin = time.perf_counter()
    ticket, length = storage.start_pages(reader, size)
    times = []
    while reader.wait(ticket, 0.0)[0] == "pending":
        times.append(timed(work))
    both = (time.perf_counter() - begin) / length
    alone += [timed(work) for _ in range(_ALONE)]
    return median(times) / median(alone) if times else 1.0, both / reading


def _only(expert: int, experts: int, rows: int) -> np.ndarray:
    return np.where(np.arange(experts + 1) > expert, rows, 0)


def _samples(call: Callable[[], object]) -> list[float]:
    """Seconds of two calls, the second on warm caches, or of one that takes so long that warming is lost in it."""
    first = timed(call)
    return [first] if first > _LONG_SECONDS else [first, timed(call)]


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
