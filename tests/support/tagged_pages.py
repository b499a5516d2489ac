"""Pages whose bytes say which page they are, and sweeps that look at every page they are lent.

Each line of 64 bytes holds its page's index, its own offset in the page, and values that follow from both.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from msgspec import structs
from simulated_machines import CONFIG

from estream import _native
from estream.configurator.simulated import SizeAlone
from estream.engine.batch import BatchShape
from estream.engine.memory import ArenaPlan, smallest_ring
from estream.engine.options import Configuration
from estream.engine.pager import Pager
from estream.engine.reads import Reads
from estream.engine.routing import RoutingLists
from estream.engine.sweep import Sweep
from estream.engine.sweep_plan import SweepSetup, plan_sweep
from estream.engine.use import ExpectedUse
from estream.host.sizes import KiB
from estream.models.config import ModelConfig
from estream.package.layout import PAGE_ALIGNMENT, PageLayout, PageSpec
from estream.package.manifest import Page
from estream.package.package import FinalNorm
from estream.package.parts import FloatPart

LINE = 64


@cache
def content(index: int, size: int) -> np.ndarray:
    """The bytes of page ``index``, uint8 [size]."""
    lines = np.arange(-(-size // LINE), dtype=np.uint64)
    words = np.empty((len(lines), LINE // 8), np.uint64)
    words[:, 0], words[:, 1] = index, lines * LINE
    words[:, 2:] = (lines * 1009 + index + 1)[:, None] * np.uint64(0x9E3779B97F4A7C15) ^ np.arange(6, dtype=np.uint64)
    return words.reshape(-1).view(np.uint8)[:size]


@dataclass(frozen=True)
class TaggedModel:
    """A tape and the file that it lies in."""

    path: Path
    config: ModelConfig = field(repr=False)
    tape: tuple[Page, ...] = field(repr=False)

    def damage(self, index: int) -> None:
        """Give the page the bytes of another one."""
        self._write(index, content(index + 1, self.tape[index].bytes))

    def repair(self, index: int) -> None:
        self._write(index, content(index, self.tape[index].bytes))

    def _write(self, index: int, data: np.ndarray) -> None:
        with open(self.path, "r+b") as file:
            file.seek(self.tape[index].offset)
            file.write(data.tobytes())


def make_model(path: Path, layers: int, experts: int, dense: tuple[int, ...], sizes: dict[str, int]) -> TaggedModel:
    """Pages of about so many bytes by kind; of ``shared`` and ``expert`` pages there are two slices each."""
    moe = structs.replace(CONFIG.moe, experts=experts, top_k=min(2, experts))
    config = structs.replace(CONFIG, layers=layers, dense_layers=dense, moe=moe)
    pages, offset = [], 0
    with open(path, "wb") as file:
        for index, spec in enumerate(_specs(config, sizes)):
            data = content(index, spec.bytes)
            page = Page(index, spec, offset, int(_native.checksum(data)))
            file.write(data.tobytes().ljust(page.padded_bytes, b"\xee"))
            offset += page.padded_bytes
            pages.append(page)
    return TaggedModel(path, config, tuple(pages))


def _specs(config: ModelConfig, sizes: dict[str, int]) -> Iterator[PageSpec]:
    def spec(kind: str, layer: int, expert: int, part: int) -> PageSpec:
        # Attention differs from layer to layer, so that places in the ring do not repeat.
        size = sizes[kind] + (layer * 36 * KiB if kind == "attention" else 0)
        return PageSpec(kind, layer, expert, part, 0, 0, PageLayout((FloatPart("all", 0, (size // 4,)),)))

    for layer in range(config.layers):
        yield spec("attention", layer, -1, -1)
        yield spec("router", layer, -1, -1)
        yield from (spec("shared", layer, -1, part) for part in range(2))
        if layer not in config.dense_layers:
            # Experts lie in an order of their own in every layer.
            order = np.random.default_rng(layer).permutation(config.moe.experts).tolist()
            yield from (spec("expert", layer, expert, part) for expert in order for part in range(2))
    yield from (spec("head", config.layers, -1, part) for part in range(4))


@dataclass(frozen=True)
class SweepCase:
    """``used`` and ``prefetched`` experts by layer; ``chances`` [layers, experts], where none are given all are alike: those
    of a ``speculative`` sweep are all read ahead, of another none.
    """

    used: Sequence[frozenset[int]]
    prefetched: Sequence[frozenset[int]]
    speculative: bool
    chances: np.ndarray | None = None


class WatchedPager(Pager):
    """Looks at all lent pages whenever one is lent or comes back."""

    def watch(self, arena: np.ndarray, base: int) -> None:
        self._arena, self._base = arena, base
        self._lent: dict[int, tuple[Page, int]] = {}
        self.seen: list[int] = []

    @contextmanager
    def run(self, pages: Sequence[Page]) -> Iterator[list[int]]:
        with super().run(pages) as addresses:
            run = list(zip(pages, addresses, strict=False))
            self._lent |= {page.index: (page, address) for page, address in run}
            self.seen += [page.index for page, _ in run]
            self.check()
            yield addresses
            self.check()
            for page, _ in run:
                del self._lent[page.index]

    def forget(self) -> None:
        """After a sweep that failed, nothing is lent."""
        self._lent.clear()

    def check(self) -> None:
        for page, address in self._lent.values():
            at = address - self._base
            found, expected = self._arena[at : at + page.bytes], content(page.index, page.bytes)
            if not np.array_equal(found, expected):
                words = found[: LINE // 8 * (found.size // (LINE // 8))].view(np.uint64)
                raise AssertionError(f"where {page.spec} (page {page.index}) is lent lies page {words[0]}, line {words[1]}")


class WatchingDevice:
    """Routes as the case says, and gives the lanes time to do wrong while it holds pages."""

    def __init__(self, config: ModelConfig, pager: WatchedPager, case: SweepCase, at_call: Callable[[int], object]) -> None:
        self._config, self._pager, self._case, self._at_call = config, pager, case, at_call
        self._calls = 0

    def _hold(self, *_: object) -> None:
        self._pager.check()
        self._at_call(self._calls)
        self._calls += 1

    begin_sweep = begin_experts = end_experts = final_norm = release = lambda *_: None
    attention = mlp = experts = head = _hold

    def route(self, spec: PageSpec, address: int) -> RoutingLists:
        self._hold()
        if spec.layer in self._config.dense_layers:
            return RoutingLists.none()
        counts = np.isin(np.arange(self._config.moe.experts), list(self._case.used[spec.layer]))
        return RoutingLists(np.empty(0, np.int32), np.empty(0, np.float32), np.concatenate(([0], np.cumsum(counts))))

    def experts_to_prefetch(self, spec: PageSpec, address: int) -> frozenset[int]:
        self._hold()
        return self._case.prefetched[spec.layer]


class TaggedSweeps:
    """An arena, its pager and a native reader over one model; ``spare`` bytes of ring beyond the smallest that will do."""

    def __init__(self, model: TaggedModel, pinned: frozenset[int], spare: int, lanes: int, request_bytes: int) -> None:
        self.model = model
        self._places: dict[int, int] = {}
        end = 0
        for index in sorted(pinned):
            self._places[index] = end
            end += model.tape[index].padded_bytes
        self._ring_offset, self.ring_bytes = end, smallest_ring(model.tape) + spare // PAGE_ALIGNMENT * PAGE_ALIGNMENT
        self._arena = _native.Arena(end + self.ring_bytes)
        self.memory: np.ndarray = self._arena.bytes()
        self.reader = _native.Reader([str(model.path)], lanes, request_bytes, True)
        addresses = {index: self._arena.address + at for index, at in self._places.items()}
        self.reads = Reads(self.reader, [model.path])
        self.pager = WatchedPager(self.reads, model.tape, request_bytes, addresses)
        smallest = smallest_ring(model.tape)
        arena = ArenaPlan(end + self.ring_bytes, dict(self._places), end, self.ring_bytes, smallest)
        self._setup = SweepSetup(model.config, model.tape, arena, Configuration(), lambda _: SizeAlone(0))
        self.pager.watch(self.memory, self._arena.address)

    def sweep(self, case: SweepCase, at_call: Callable[[int], object] = lambda _: None) -> list[int]:
        """Run one sweep; the pages that it was lent, in order. ``at_call`` is told which call of the device this is."""
        model, pager = self.model, self.pager
        pager.seen = []
        self.reads.accept()
        shape = (model.config.layers, model.config.moe.experts)
        chances = np.full(shape, 1.0 if case.speculative else 0.1) if case.chances is None else case.chances
        plan = plan_sweep(
            self._setup, BatchShape((len(case.used[-1]),), len(case.used[-1])), pager.resident, ExpectedUse(chances)
        )
        device = WatchingDevice(model.config, pager, case, at_call)
        norm, arrays = FinalNorm(np.empty(0, np.float32), None), SimpleNamespace(residual=np.empty((1, 1)), head=None)
        embedding = SimpleNamespace(finish=lambda _: None, bytes=0)
        sweep = Sweep(model.tape, device, self.reads, pager, norm)
        try:
            sweep.run(SimpleNamespace(tokens=1), plan, arrays, embedding, self._arena.address)
        except BaseException:
            pager.forget()
            raise
        return pager.seen

    def check_resident(self) -> None:
        """Pages that count as read are whole."""
        for index in self.pager.resident:
            page, at = self.model.tape[index], self._places[index]
            np.testing.assert_array_equal(self.memory[at : at + page.bytes], content(index, page.bytes))

    def ring_is_left_alone(self, seconds: float) -> bool:
        """Whether nothing is written into the ring for so long."""
        ring = self.memory[self._ring_offset :]
        ring[:] = 0xAB
        time.sleep(seconds)
        return bool((ring == 0xAB).all())
