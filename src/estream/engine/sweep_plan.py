"""Everything that is fixed before a sweep begins, as one value made by one pure function.

The engine, the simulator and the probes call :func:`plan_sweep`, so what is simulated is what runs.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from estream.engine.activations import ArraysPlan, ArraysPlanner
from estream.engine.batch import BatchShape
from estream.engine.memory import ArenaPlan, ModelMemory, SweepLayout, divide_arena
from estream.engine.options import Configuration
from estream.engine.schedule import ReadSchedule, plan_reading
from estream.engine.use import ExpectedUse
from estream.host.sizes import MiB
from estream.models.config import ModelConfig
from estream.package.manifest import Page

#: Of this many parts of the ring one is kept for pages that are known to be needed.
_KNOWN_SHARE = 4
#: More of the head is not read before the last layer's experts: those would wait for it.
_EARLY_HEAD = 128 * MiB


@dataclass(frozen=True)
class SweepSetup:
    """What all sweeps of a loaded model share: the model, its tape, its arena, and how the pipeline is configured."""

    config: ModelConfig
    tape: Sequence[Page]
    arena: ArenaPlan
    configuration: Configuration
    plan_arrays: ArraysPlanner

    @staticmethod
    def of(memory: ModelMemory, configuration: Configuration, chances: np.ndarray | None = None) -> "SweepSetup":
        """``chances`` float64 [layers, experts], of a short prompt to use an expert, decide which pages are kept."""
        manifest, arena = memory.manifest, memory.plan_arena(configuration, chances)
        return SweepSetup(manifest.config, manifest.tape, arena, configuration, memory.plan_arrays)


@dataclass(frozen=True)
class SweepPlan:
    """One sweep: the ``arrays`` of its batch, how the arena is divided, which pages are ``resident``, and in which order the
    others are read. No more than ``guess_bytes`` of experts are asked for before somebody knows that they are needed.
    """

    shape: BatchShape
    arrays: ArraysPlan
    layout: SweepLayout
    resident: frozenset[int]
    schedule: ReadSchedule
    guess_bytes: int


def plan_sweep(setup: SweepSetup, shape: BatchShape, resident: Collection[int], use: ExpectedUse) -> SweepPlan:
    """Plan one sweep. Pure; the caller has checked the floor of this batch.

    Args:
        setup: what all sweeps of the model share.
        shape: the batch.
        resident: indices of pinned pages that are whole in the arena. Those that the activations of a long prompt need the
            place of are read again.
        use: how probable it is that this batch uses an expert.

    """
    arrays, arena, config = setup.plan_arrays(shape), setup.arena, setup.config
    layout = divide_arena(arena, arrays.bytes)
    kept = frozenset(i for i in resident if arena.pinned[i] + setup.tape[i].padded_bytes <= layout.ring_offset)
    ring = layout.ring_bytes or arena.ring_bytes
    early = _early_head_bytes(setup, ring, shape.wanted)
    tape = [p for p in setup.tape if p.spec.kind != "head" or shape.head.reads(p.spec.first, p.spec.count)]
    schedule = plan_reading(config, tape, kept, use, setup.configuration.read_ahead_chance, early)
    return SweepPlan(shape, arrays, layout, kept, schedule, ring - ring // _KNOWN_SHARE)


def _early_head_bytes(setup: SweepSetup, ring_bytes: int, wanted: int) -> int:
    """Head pages that may be read ahead of the last layer's experts, in bytes.

    They stay in the ring until those experts are done. So the whole of the experts that ``wanted`` rows can use must fit
    beside them.
    """
    moe = setup.config.moe
    experts = [p for p in setup.tape if p.spec.kind == "expert"]
    of_one = sum(p.padded_bytes for p in experts if (p.spec.layer, p.spec.expert) == (experts[0].spec.layer, 0))
    room = ring_bytes - min(moe.experts, wanted * moe.top_k) * of_one - setup.arena.smallest_ring
    return min(max(0, room), _EARLY_HEAD)
