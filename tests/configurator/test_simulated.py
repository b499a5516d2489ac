"""Simulated lanes and drawn routing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_machines import CONFIG, MB, profile

from estream.configurator.simulated import SimulatedClock, SimulatedReader, draw_routing
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
    routing = draw_routing(CONFIG, tokens, 3)
    counts = np.diff(routing.starts)
    assert counts.sum() == tokens * CONFIG.moe.top_k
    assert len(routing.used) >= CONFIG.moe.top_k
