"""A loaded model: an arena, its reader lanes and a device, ready for sweeps."""

import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Self

import numpy as np

from estream import _native
from estream.api.batch_calls import BatchCalls
from estream.api.result import Prefill, Reading, SweepStats
from estream.api.services import TextServices
from estream.api.text_calls import TextCalls
from estream.configurator.configure import configure
from estream.configurator.estimates import SweepEstimates
from estream.configurator.use_store import KeptUse
from estream.devices.opening import open_within_memory
from estream.engine.batch import Batch, BatchShape
from estream.engine.embedding import EmbeddingReader
from estream.engine.finite import no_number, refuse
from estream.engine.memory import divide_arena
from estream.engine.options import LoadOptions
from estream.engine.pager import Pager
from estream.engine.reads import EMBEDDING_FILE, PAGES_FILE, Reads
from estream.engine.sweep import Advance, Look, Sweep, SweepResult
from estream.engine.sweep_plan import SweepPlan, SweepSetup, plan_sweep
from estream.engine.timeline import Timeline
from estream.engine.wanted import Positions, Prompt, Request
from estream.engine.workspace import Workspace
from estream.errors import NumericError, PromptError, StateError
from estream.host import limits, system
from estream.host.doing import Doing, logged
from estream.host.sizes import GiB, format_bytes
from estream.package.package import Package
from estream.text.tokenizer import TextTokenizer

#: To back more of an arena with memory takes a noticeable time.
_LARGE_ARENA = 4 * GiB

_MODELS: "weakref.WeakSet[Model]" = weakref.WeakSet()


def _abandon_in_child() -> None:
    """A forked child has neither the lanes nor the arena: destroying what held them would wait for threads that are gone."""
    for model in _MODELS:
        model._abandon()


system.call_after_fork(_abandon_in_child)


class Model(TextCalls, BatchCalls, TextServices):
    """Made by :func:`estream.load`. Used from several threads, calls queue. Close it, or use it in a ``with`` block."""

    def __init__(self, package: Package, options: LoadOptions, doing: Doing = logged) -> None:
        """``doing`` is told what takes long."""
        options.check()
        manifest = package.manifest
        self._package = package
        self._options = options
        self._tokenizer = TextTokenizer(package.tokenizer_path, package.path)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._device, self._memory = open_within_memory(package, options)
        self._shares_prefixes = self._device.shares_prefixes
        self._memory.check(BatchShape.of_prompt(1))
        self._use = KeptUse(package)
        learned = self._use.learned
        chosen = configure(package, self._device, options, self._memory, learned, doing)
        self._estimates = SweepEstimates(chosen, package.path)
        self._setup = SweepSetup.of(self._memory, chosen.configuration, learned.of_short_prompt())
        # Memory that the user has set aside stays in memory; what was merely free may be swapped.
        self._workspace = Workspace(self._setup.arena, lock=options.memory is not None)
        layout = divide_arena(self._setup.arena, self._memory.planned_activations)
        size = layout.bytes
        with doing(f"loading pages' memory, {format_bytes(size)}", None) if size >= _LARGE_ARENA else nullcontext():
            self._workspace.prepare(layout)
        request_bytes = chosen.configuration.request_bytes
        reader = package.open_reader(chosen.configuration.lanes, request_bytes, options.direct_io)
        self._reads = Reads(reader, [package.pages_path, package.embedding_path])
        pinned = {index: self._workspace.address + offset for index, offset in self._setup.arena.pinned.items()}
        self._pager = Pager(self._reads, manifest.tape, request_bytes, pinned)
        self._sweep = Sweep(manifest.tape, self._device, self._reads, self._pager, package.final_norm())
        _MODELS.add(self)

    @property
    def package(self) -> Package:
        return self._package

    @property
    def budget_bytes(self) -> int:
        return self._memory.budget_bytes

    @property
    def arena_bytes(self) -> int:
        """Memory that the arena takes now. Raises StateError after :meth:`close`."""
        self._check_usable()
        return self._workspace.bytes

    def device_seconds(self) -> dict[str, float]:
        """Seconds that the device has spent so far, by kind of work. Raises StateError after :meth:`close`."""
        self._check_usable()
        return self._device.seconds()

    def close(self) -> None:
        """Stop the lanes and free the arena. Closing twice, or in a forked child, is harmless."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._reads.stop()
            del self._sweep, self._pager, self._reads, self._workspace, self._device
        self._estimates.judge()
        self._use.keep()

    def _abandon(self) -> None:
        if self._closed:
            return
        self._device.abandon()
        for part in (self._reads.native, self._workspace.native):
            _native.abandon(part)

    def cancel(self) -> None:
        """Stop the sweep that runs now, from any thread: its caller gets CancelledError within one page's time."""
        reads = getattr(self, "_reads", None)
        if reads is not None:
            reads.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def prefill(self, prompt: Prompt, positions: Positions = None) -> Prefill:
        """Read one prompt: text, or token ids.

        Args:
            prompt: the text or the ids.
            positions: where logits are wanted, counted from 0; None for the last one alone.

        Returns:
            logits float32 [vocabulary] at the last position, [positions, vocabulary] where positions were asked for.

        Raises:
            PromptError: the prompt is empty, too long, or names an id outside the vocabulary.
            BudgetError: the memory budget is below the floor for this length.
            ReadError: the package could not be read; the model stays usable.
            CancelledError: :meth:`cancel` was called meanwhile; the model stays usable.
            NumericError: the logits would not be finite numbers; the message names the layer.
            StateError: the model is closed, or this process was forked from the one that loaded it.

        """
        return self.prefill_batch([prompt], None if positions is None else [positions])[0]

    def prefill_batch(self, prompts: Sequence[Prompt], positions: Sequence[Positions] | None = None) -> list[Prefill]:
        """Read several prompts in one sweep; each gets the bits that it would get alone.

        ``positions`` holds what :meth:`prefill` takes, for each prompt. Raises as that; the message says which prompt.
        """
        if isinstance(prompts, str | np.ndarray):
            raise PromptError("prompts must be a list of texts or of id sequences; one prompt goes to prefill()")
        chosen = [None] * len(prompts) if positions is None else positions
        if len(chosen) != len(prompts):
            raise PromptError(f"there are {len(prompts)} prompts, but positions for {len(chosen)}")
        readings = self.read([Request(prompt, at) for prompt, at in zip(prompts, chosen, strict=True)])
        pairs = zip(readings, chosen, strict=True)
        return [Prefill(each.logits[0] if at is None else each.logits, each.stats) for each, at in pairs]

    def read(self, requests: Sequence[Request], advance: Advance | None = None) -> list[Reading]:
        """Read the prompts of several requests in one sweep, and keep of each what is wanted of its positions.

        Each gets the bits that it would get alone. Of the head only the pages that somebody needs are read. Raises as
        :meth:`prefill`, and PromptError where something is wanted that the model lacks. ``advance`` is told of each layer.
        """
        begin = time.perf_counter()
        batch = self._batch(requests)
        with self._using():
            self._estimates.begin()
            self._memory.check(batch.shape)
            self._reads.accept()
            self._sweep.advance = advance
            before = self._reads.native.stats()
            plan = self._plan(batch)
            result = self._run(batch, plan)
            self._use.observe(result.counts, batch.shape)
            if batch.head.strange_row(result.head) is not None:
                self._refuse_numbers(batch)
            answers = batch.head.answers(result.head)
            stats = self._stats(batch, plan, result, before, time.perf_counter() - begin)
        return [Reading(request.wanted, values, stats) for request, values in zip(requests, answers, strict=True)]

    def _refuse_numbers(self, batch: Batch) -> None:
        """Sweep again, and name the first layer whose numbers are none."""
        result = self._run(batch, self._plan(batch), refuse)
        if (row := batch.head.strange_row(result.head)) is not None:
            raise no_number("the last layer or the head", row)
        raise NumericError(
            "the answers were no finite numbers, and are when computed again: this machine's memory or processor errs"
        )

    def _plan(self, batch: Batch) -> SweepPlan:
        return plan_sweep(self._setup, batch.shape, self._pager.resident, self._use.learned.expected(batch.shape))

    def _run(self, batch: Batch, plan: SweepPlan, look: Look | None = None) -> SweepResult:
        """Its answers lie in the arena."""
        workspace, offset = self._workspace, plan.layout.activations_offset
        workspace.prepare(plan.layout)
        memory = workspace.memory[offset : offset + plan.arrays.bytes]
        # Rows are read into the activations behind the residual, which nothing uses before the first layer.
        embedding = EmbeddingReader(self._package, self._reads, batch.ids, memory[plan.arrays.residual_bytes :])
        return self._sweep.run(batch, plan, plan.arrays.carve(memory), embedding, workspace.address, look)

    @contextmanager
    def _using(self) -> Iterator[None]:
        """One caller at a time. A forked child would wait for a lock that another thread held, so it is told first."""
        self._check_usable()
        with self._lock:
            self._check_usable()
            yield

    @contextmanager
    def record(self) -> Iterator[Timeline]:
        """Record what happens when in the sweeps inside the block."""
        timeline = Timeline()
        with self._using():
            reads = self._reads
            reads.timeline = timeline
            reads.native.take_events()
            reads.native.record(True)
        try:
            yield timeline
        finally:
            with self._lock:
                reads.native.record(False)
                timeline.add_reads(reads.native.take_events())
                reads.timeline = None

    def _check_usable(self) -> None:
        if self._closed:
            raise StateError("this model is closed; load it again")
        if os.getpid() != self._pid:
            raise StateError("a model does not survive a fork; load it again in the child process")

    def _stats(
        self, batch: Batch, plan: SweepPlan, result: SweepResult, before: "tuple[int, int, float, float]", ttft_s: float
    ) -> SweepStats:
        bytes_read, requests, read_s, checksum_s = (b - a for a, b in zip(before, self._reads.native.stats(), strict=True))
        direct = self._reads.native.direct
        return SweepStats(
            ttft_s=ttft_s,
            prompt_tokens=batch.prompt_tokens,
            computed_tokens=batch.tokens,
            prompts=len(batch.prompt_counts),
            bytes_read=int(bytes_read),
            embedding_bytes=result.embedding_bytes,
            bytes_unused=result.unused_bytes,
            read_s=read_s,
            compute_s=result.compute_s,
            stall_s=result.stall_s,
            checksum_s=checksum_s,
            peak_rss_bytes=limits.peak_resident_bytes(),
            budget_bytes=self.budget_bytes,
            arena_bytes=self._workspace.bytes,
            direct_io=direct(PAGES_FILE) and direct(EMBEDDING_FILE),
            prediction={"predicted": result.prefetch.prefetched, "right": result.prefetch.used},
            emulated=self._device.emulated,
            device=self._device.name,
            config={
                "threads": self._device.threads,
                "kernels": self._device.variant,
                "activations": self._options.activations,
                **self._device.facts(),
                **self._setup.configuration.to_json(),
                "arena_locked": self._workspace.locked,
                "requests": int(requests),
                "ring_bytes": plan.layout.ring_bytes,
                "pinned_pages": self._pager.pinned_count,
            },
            estimate=self._estimates.of_sweep(plan.shape, ttft_s, plan.resident),
        )
