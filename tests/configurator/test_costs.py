"""What pages cost."""

import pytest
from msgspec.structs import replace
from simulated_machines import CONFIG, OLMOE, profile

from estream.configurator.costs import FULL, RatedCosts
from estream.configurator.curve import Curve, Point
from estream.engine.batch import BatchShape


def test_tiles_cover_rows_and_cost_their_tail():
    costs = RatedCosts(1e12, 1e12, 1e15, 0.0, (16, 64))
    expert = next(p.spec for p in OLMOE.tape if p.spec.kind == "expert")
    assert costs.expert(expert, 1) == costs.expert(expert, 16)
    assert costs.expert(expert, 17) == costs.expert(expert, 64) == pytest.approx(4 * costs.expert(expert, 16))
    assert costs.expert(expert, 65) == pytest.approx(5 * costs.expert(expert, 16))


def test_sequences_do_not_attend_to_each_other():
    costs = replace(profile().costs, attention_curves={FULL: Curve((Point(1, 1e-3), Point(2048, 0.2)))}, attention_square=1e-8)
    spec = OLMOE.tape[0].spec
    one, two = (costs.attention(spec, CONFIG, BatchShape(lengths, 1), None) for lengths in ((2048,), (1024, 1024)))
    assert one - two == pytest.approx(1e-8 * (2048**2 - 2 * 1024**2))
