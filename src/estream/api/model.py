"""A loaded model: an arena, its reader lanes and a device, ready for sweeps."""

import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

import numpy as np

from estream import _native
from estream.api.result import Prefill, SweepStats, TopToken
from estream.configurator.configure import configure
from estream.configurator.simulate import Setting
from estream.configurator.simulated import Workload
from estream.configurator.watch import PredictionWatch
from estream.devices.opening import open_device
from estream.devices.plans import plan_sweep
from estream.engine.activations import SweepArrays, SweepPlan
from estream.engine.batch import Batch
from estream.engine.embedding import EmbeddingReader
from estream.engine.memory import Floor, SweepLayout, early_head_bytes, reserve_bytes, usual_tokens
from estream.engine.options import LoadOptions
from estream.engine.pager import EMBEDDING_FILE, PAGES_FILE, Pager
from estream.engine.prompts import Positions, Prompt, make_batch
from estream.engine.schedule import ReadSchedule, expected_share
from estream.engine.sweep import Sweep
from estream.engine.timeline import Timeline
from estream.engine.workspace import Workspace
from estream.errors import OptionError, StateError
from estream.host import limits, system
from estream.package.package import Package
from estream.text.chat_template import Message, RenderedChat
from estream.text.tokenizer import TextTokenizer

_MODELS: "weakref.WeakSet[Model]" = weakref.WeakSet()


def _abandon_in_child() -> None:
    """A forked child has neither the lanes nor the arena: destroying what held them would wait for threads that are gone."""
    for model in _MODELS:
        model._abandon()


system.call_after_fork(_abandon_in_child)


class Model:
    """Made by :func:`estream.load`. Used from several threads, calls queue. Close it, or use it in a ``with`` block."""

    def __init__(self, package: Package, options: LoadOptions) -> None:
        options.check()
        self._package = package
        self._options = options
        self._config = package.manifest.config
        self._tokenizer = TextTokenizer(package.tokenizer_path, package.path)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._device = open_device(package, options)
        self._final_norm = package.final_norm()
        self._process_bytes = limits.resident_bytes()
        self._budget = limits.budget_of(options.memory)
        self._floor(self._plan(Batch.of([[0]])), 1)
        self._configure()
        self._workspace = self._make_workspace()
        paths = [package.pages_path, package.embedding_path]
        request_bytes = self._configuration.request_bytes
        self._reader = package.open_reader(self._configuration.lanes, request_bytes, options.direct_io)
        pinned = self._workspace.pinned()
        self._pager = Pager(self._reader, paths, package.manifest.tape, request_bytes, pinned)
        self._sweep = Sweep(package.manifest.tape, self._device, self._pager, self._final_norm)
        _MODELS.add(self)

    def _configure(self) -> None:
        exact, kv_bytes = self._options.activations == "float", self._device.kv_element_bytes
        setting = Setting(self._package.manifest, self._budget, self._process_bytes, exact, kv_bytes)
        self._setting = setting
        configured = configure(self._package, self._device, self._options, setting)
        self._configuration = configured.configuration
        self._watch = PredictionWatch(configured)

    @property
    def package(self) -> Package:
        return self._package

    @property
    def budget_bytes(self) -> int:
        return self._budget

    @property
    def arena_bytes(self) -> int:
        """Memory that the arena takes now."""
        return self._workspace.bytes

    def device_seconds(self) -> dict[str, float]:
        """Seconds that the device has spent so far, by kind of work."""
        return self._device.seconds()

    def close(self) -> None:
        """Stop the lanes and free the arena. Closing twice, or in a forked child, is harmless."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                self._reader.cancel()
                del self._sweep, self._pager, self._reader, self._workspace, self._device

    def _abandon(self) -> None:
        if self._closed:
            return
        self._device.abandon()
        for part in (self._reader, self._workspace.native):
            _native.abandon(part)

    def cancel(self) -> None:
        """Stop the sweep that runs now, from any thread: its caller gets CancelledError within one page's time."""
        pager = getattr(self, "_pager", None)
        if pager is not None:
            pager.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def prefill(self, prompt: Prompt, positions: Positions = None) -> Prefill:
        """Read one prompt: text, or token ids.

        Args:
            prompt: the text or the ids.
            positions: where logits are wanted, counted from 0; None for the last one alone.

        Raises:
            PromptError: the prompt is empty, too long, or names an id outside the vocabulary.
            BudgetError: the memory budget is below the floor for this length.
            ReadError: the package could not be read; the model stays usable.

        """
        return self.prefill_batch([prompt], None if positions is None else [positions])[0]

    def prefill_batch(self, prompts: Sequence[Prompt], positions: Sequence[Positions] | None = None) -> list[Prefill]:
        """Read several prompts in one sweep; each gets the bits that it would get alone.

        ``positions`` holds what :meth:`prefill` takes, for each prompt. Raises as that; the message says which prompt.
        """
        begin = time.perf_counter()
        batch = make_batch(prompts, positions, self._tokenizer, self._config)
        with self._lock:
            self._check_usable()
            self._pager.accept()
            rows = self._run(batch)
            stats = self._stats(batch, time.perf_counter() - begin)
        ends = np.cumsum(batch.wanted_counts)
        parts = [rows[end - count : end] for end, count in zip(ends, batch.wanted_counts, strict=True)]
        single = [positions is None or positions[i] is None for i in range(len(prompts))]
        return [Prefill(part[0] if one else part, stats) for part, one in zip(parts, single, strict=True)]

    @contextmanager
    def record(self) -> Iterator[Timeline]:
        """Record what happens when in the sweeps inside the block."""
        timeline = Timeline()
        with self._lock:
            self._check_usable()
            self._sweep.timeline = self._pager.timeline = timeline
            self._reader.take_events()
            self._reader.record(True)
        try:
            yield timeline
        finally:
            with self._lock:
                if not self._closed:
                    self._reader.record(False)
                    timeline.add_reads(self._reader.take_events())
                    self._sweep.timeline = self._pager.timeline = None

    def top(self, result: Prefill, count: int) -> list[TopToken]:
        """The ``count`` likeliest next tokens, likeliest first.

        Raises:
            OptionError: ``count`` is below 1, or the result holds several positions.

        """
        if count < 1 or result.logits.ndim != 1:
            raise OptionError(f"top needs a count of at least 1 and the logits of one position, not {result.logits.shape}")
        logprobs = result.log_probabilities()
        order = np.argsort(-logprobs, kind="stable")[: min(count, len(logprobs))]
        return [TopToken(int(i), self._tokenizer.piece(int(i)), float(logprobs[i])) for i in order]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer's own rules add."""
        return self._tokenizer.encode(text)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> RenderedChat:
        """The text of a conversation by the checkpoint's chat template, as :meth:`ChatTemplate.render` says.

        :meth:`prefill` takes it, and adds no second beginning-of-sequence token to it.
        """
        return self._tokenizer.chat.render(messages, add_generation_prompt, **variables)

    def encode_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> list[int]:
        """Token ids of a conversation. Raises PromptError as :meth:`render` does."""
        return self._tokenizer.encode(self.render(messages, add_generation_prompt, **variables))

    def _check_usable(self) -> None:
        if self._closed:
            raise StateError("this model is closed; load it again")
        if os.getpid() != self._pid:
            raise StateError("a model does not survive a fork; load it again in the child process")

    def _plan(self, batch: Batch) -> SweepPlan:
        exact = self._options.activations == "float"
        return plan_sweep(self._package.manifest, batch, exact, self._device.kv_element_bytes)

    def _make_workspace(self) -> Workspace:
        usual = self._plan(Batch.of([np.zeros(usual_tokens(self._config), np.int32)])).bytes
        capacity = self._budget - self._process_bytes - reserve_bytes(self._budget)
        # Memory that the user has set aside stays in memory; what was merely free may be swapped.
        lock = self._options.memory is not None
        return Workspace(self._package.manifest, capacity, usual, self._configuration, lock=lock)

    def _floor(self, plan: SweepPlan, tokens: int) -> None:
        Floor.of(self._process_bytes, plan.bytes, self._package.manifest.tape).check(self._budget, tokens)

    def _run(self, batch: Batch) -> np.ndarray:
        """Logits [wanted, vocabulary], copied out of the arena."""
        plan = self._plan(batch)
        self._floor(plan, batch.tokens)
        layout = self._workspace.divide(plan.bytes)
        self._reader_before = self._reader.stats()
        self._pager.unpin_beyond(self._workspace.ring_address)
        activations = plan.carve(self._workspace.memory[layout.activations_offset :])
        try:
            return self._read_and_compute(batch, plan, layout, activations).copy()
        except BaseException:
            self._pager.abort()
            raise

    def _read_and_compute(self, batch: Batch, plan: SweepPlan, layout: SweepLayout, activations: SweepArrays) -> np.ndarray:
        tape = self._package.manifest.tape
        # Rows are read into the activations behind the residual, which nothing uses before the first layer.
        scratch = layout.activations_offset + plan.residual_bytes
        embedding = EmbeddingReader(self._package, self._reader, self._pager)
        memory = self._workspace.memory[scratch : layout.activations_offset + plan.bytes]
        embedding.start(batch.ids, memory, self._workspace.address + scratch)
        last_experts = min(self._config.moe.experts, len(batch.wanted) * self._config.moe.top_k)
        early_head = early_head_bytes(tape, layout.ring_bytes, last_experts)
        speculative = expected_share(self._config, batch.tokens) >= self._configuration.speculative_share
        resident = self._pager.resident
        self._repeated = bool(resident)
        schedule = ReadSchedule(self._config, tape, resident, speculative, early_head)
        self._pager.begin(schedule, self._workspace.ring_address, layout.ring_bytes)
        logits = self._sweep.run(batch, activations, embedding)
        self._pager.end()
        self._prediction = asdict(schedule.prediction)
        return logits

    def _stats(self, batch: Batch, ttft: float) -> SweepStats:
        after = self._reader.stats()
        bytes_read, requests, read_s, checksum_s = (b - a for a, b in zip(self._reader_before, after, strict=True))
        return SweepStats(
            ttft_s=ttft,
            prompt_tokens=batch.tokens,
            prompts=len(batch.lengths),
            bytes_read=int(bytes_read),
            bytes_unused=self._pager.unused_bytes,
            read_s=read_s,
            compute_s=self._sweep.compute_s,
            stall_s=self._pager.stall_s,
            checksum_s=checksum_s,
            peak_rss_bytes=limits.peak_resident_bytes(),
            budget_bytes=self._budget,
            arena_bytes=self.arena_bytes,
            direct_io=self._reader.direct(PAGES_FILE) and self._reader.direct(EMBEDDING_FILE),
            predicted_ttft_s=self._watch.observe(Workload.of(batch), ttft, repeated=self._repeated),
            prediction=self._prediction,
            emulated=self._device.emulated,
            device=self._device.name,
            config={
                "threads": self._device.threads,
                "kernels": self._device.variant,
                "activations": self._options.activations,
                **self._device.facts(),
                **self._configuration.to_json(),
                "arena_locked": self._workspace.locked,
                "requests": int(requests),
                "ring_bytes": self._workspace.layout.ring_bytes,
                "pinned_pages": self._pager.pinned_count,
            },
        )
