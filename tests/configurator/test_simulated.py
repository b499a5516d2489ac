"""Simulated lanes and drawn routing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_machines import CONFIG, MB, profile

from estream.configurator.simulated import SimulatedClock, SimulatedReader, draw_routing
from estream.engine.batch import BatchShape
from estream.engine.use import LearnedUse
from estream.host.sizes import MiB


@given(st.integers(1, 16), st.lists(st.integers(1, 64), min_size=1, max_size=40))
def test_simulated_lanes_never_exceed_the_measured_bandwidth(lanes: int, pages: list[int]):
    clock = SimulatedClock()
    reader = SimulatedReader(clock, profile(), lanes, 2 * MiB)
    total, ticket = 0, 0
    for page in pages:
        size = page * 64 * 1024
        ticket = reader.submit(0, 0, 0, size, [(0, size, 0, True)])
        total += size
    for i in range(ticket + 1):
        reader.wait(i, 1.0)
    assert clock.now >= total / (2000 * MB) * (1 - 1e-9)
    assert reader.bytes == total
    assert reader.read_s == pytest.approx(clock.now)


@given(st.integers(1, 4096))
def test_drawn_routing_sends_every_token_to_all_its_experts(tokens: int):
    routing = draw_routing(CONFIG, tokens, LearnedUse(CONFIG).chances(BatchShape.of_prompt(tokens))[0], 3)
    counts = np.diff(routing.starts)
    assert counts.sum() == tokens * CONFIG.moe.top_k
    assert len(routing.used) >= CONFIG.moe.top_k


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=30), st.integers(0, 60))
def test_withdrawn_reads_take_no_time_and_others_move_up(pages: list[tuple[int, bool]], later_ms: int):
    """With one lane, whose rate does not change: what is left takes its own time, beside the request that the lane holds."""
    clock = SimulatedClock()
    reader = SimulatedReader(clock, profile(), 1, 2 * MiB)
    tickets = [(reader.submit(0, 0, 0, n << 16, [(0, n << 16, 0, True)]), useless) for n, useless in pages]
    asked = reader.bytes
    clock.now = min(later_ms * 1e-3, reader.busy_until)
    dropped = reader.withdraw([ticket for ticket, useless in tickets if useless])
    assert dropped <= sum(n << 16 for n, useless in pages if useless)
    assert reader.bytes == asked - dropped
    assert reader.read_s == pytest.approx((asked - dropped) / (1000 * MB))
    for ticket, _ in tickets:
        reader.wait(ticket, 1.0)
    assert clock.now == pytest.approx(max(reader.read_s, min(later_ms * 1e-3, asked / (1000 * MB))))
    assert reader.withdraw([ticket for ticket, _ in tickets]) == 0
