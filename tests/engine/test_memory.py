"""How an arena is planned and divided."""

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_machines import CONFIG, OLMOE

from estream.configurator.simulated import SizeAlone
from estream.engine.memory import ArenaPlan, ModelMemory, divide_arena, smallest_ring
from estream.engine.options import Configuration
from estream.host.sizes import GiB, MiB

TAPE = OLMOE.tape


def plan_arena(capacity: int, activations: int, configuration: Configuration) -> ArenaPlan:
    """An arena of at most ``capacity`` bytes for prompts that take ``activations`` bytes."""
    # The budget of which this is left when 32 MiB or 4 % are reserved.
    budget = max(capacity + 32 * MiB, -(-capacity * 25 // 24))
    memory = ModelMemory(OLMOE, budget, 0, lambda _: SizeAlone(activations))
    assert capacity <= memory.arena_bytes <= capacity + 1
    return memory.plan_arena(configuration)


BOUNDS = st.none() | st.integers(0, 5 * GiB)


@given(st.integers(64 * MiB, 8 * GiB), st.integers(0, 300 * MiB), st.integers(1, 300 * MiB), st.integers(0, GiB), BOUNDS)
def test_an_arena_never_exceeds_its_capacity_and_pins_runs(capacity: int, planned: int, activations: int, ring: int, bound):
    planned = min(planned, capacity - smallest_ring(TAPE) - 4 * MiB)
    activations = min(activations, capacity - smallest_ring(TAPE) - 4 * MiB)
    plan = plan_arena(capacity, max(0, planned), Configuration(ring_bytes=ring, pinned_bytes=bound))
    assert plan.bytes <= capacity + 1
    assert bound is None or plan.pinned_bytes <= bound
    assert plan.everything_pinned == (len(plan.pinned) == len(TAPE))
    if not plan.everything_pinned and plan.pinned:
        assert plan.bytes - max(0, planned) - plan.pinned_bytes >= ring
        for layer in range(CONFIG.layers):
            indices = [p.index for p in TAPE if p.spec.layer == layer]
            pinned = [i for i in indices if i in plan.pinned]
            assert pinned == indices[: len(pinned)]
    layout = divide_arena(plan, max(1, activations))
    assert layout.ring_offset + layout.ring_bytes <= layout.activations_offset <= plan.bytes - max(1, activations)
    assert layout.ring_bytes <= max(ring, smallest_ring(TAPE))
    still_pinned = [i for i, at in plan.pinned.items() if at + TAPE[i].padded_bytes <= layout.ring_offset]
    assert len(still_pinned) == len(TAPE) or layout.ring_bytes >= smallest_ring(TAPE)


def test_equal_inputs_give_equal_plans_that_nothing_can_change():
    plan, again = (plan_arena(GiB, 5 * MiB, Configuration(ring_bytes=200 * MiB)) for _ in range(2))
    assert plan == again
    assert plan.pinned
    for other in (
        plan_arena(2 * GiB, 5 * MiB, Configuration(ring_bytes=200 * MiB)),
        plan_arena(GiB, 100 * MiB, Configuration(ring_bytes=200 * MiB)),
        plan_arena(GiB, 5 * MiB, Configuration(ring_bytes=300 * MiB)),
        plan_arena(GiB, 5 * MiB, Configuration(ring_bytes=200 * MiB, pinned_bytes=300 * MiB)),
    ):
        assert other != plan
    with pytest.raises(FrozenInstanceError):
        plan.bytes = 0
    with pytest.raises(FrozenInstanceError):
        divide_arena(plan, 5 * MiB).ring_bytes = 0
