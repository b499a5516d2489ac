"""What the head takes of memory, and which of its pages somebody needs."""

import numpy as np
import pytest
from msgspec.structs import replace
from simulated_machines import manifest_of

from estream.devices.opening import arrays_planner
from estream.engine.batch import Batch
from estream.engine.head_plan import plan_head
from estream.engine.wanted import Among, Hidden, Likeliest, Logits, LogProbabilities, Wanted
from estream.host.sizes import MiB
from estream.models import qwen2_moe, qwen3_moe
from estream.models.published_shapes import SHAPES
from estream.package.layout import Quantization

TOKENS = 4096
ALL = [range(TOKENS)]


@pytest.mark.parametrize("float_activations", [False, True])
@pytest.mark.parametrize(("family", "shape"), [(qwen2_moe, "qwen1.5-moe-a2.7b"), (qwen3_moe, "qwen3-30b-a3b")])
@pytest.mark.parametrize(
    "wanted",
    [Likeliest(20), LogProbabilities(np.zeros((TOKENS, 1), np.int32)), Among((1, 2)), Hidden(mean=True)],
    ids=["likeliest", "log-probabilities", "among", "mean"],
)
def test_all_positions_take_little_more_than_one(family, shape: str, wanted: Wanted, float_activations: bool):
    config = family.read_config(SHAPES[shape])
    assert config.vocabulary == 151936
    plan = arrays_planner(manifest_of(config, Quantization.choose(config, 4, 8, 64)), float_activations, 4)
    ids = [np.zeros(TOKENS, np.int32)]
    plain, reduced = plan(Batch.of(ids).shape), plan(Batch.of(ids, ALL, [wanted]).shape)
    assert reduced.bytes - plain.bytes < 32 * MiB
    # The hidden states themselves are an answer of this size.
    hidden = plan(Batch.of(ids, ALL, [Hidden()]).shape)
    assert hidden.bytes - plain.bytes <= 4 * TOKENS * config.hidden + 1 * MiB


def test_a_narrow_model_has_no_more_logits_at_once():
    config = replace(qwen3_moe.read_config(SHAPES["qwen3-30b-a3b"]), hidden=64)
    plan = arrays_planner(manifest_of(config, Quantization.choose(config, 4, 8, 64)), False, 4)
    ids = [np.zeros(TOKENS, np.int32)]
    assert plan(Batch.of(ids, ALL, [Likeliest(1)]).shape).bytes - plan(Batch.of(ids).shape).bytes < 32 * MiB


def test_rows_that_need_the_same_pages_lie_side_by_side():
    rows = [np.array(r, np.int32) for r in ([9, 4], [1, 2], [3], [2, 7], [4], [8])]
    wanted = [Among((5, 90)), Logits(), Hidden(), Likeliest(2), Among((200,)), Among((90, 5))]
    order, plan = plan_head(rows, wanted)
    assert order.tolist() == [2, 7, 1, 9, 4, 8, 3]
    assert (plan.shape.rows, plan.shape.totals) == (6, 2)
    # Ids in another order are other ids to look for, of the same pages.
    assert plan.ranges(0, 90) == [(0, 6)]
    assert plan.ranges(100, 101) == [(0, 3), (4, 5)]
    assert plan.ranges(300, 10) == [(0, 3)]
    assert plan.shape.ids is None


def test_of_some_ids_only_their_pages_are_read():
    _, plan = plan_head([np.array([0], np.int32), np.array([1], np.int32)], [Among((5, 90)), Hidden()])
    assert [plan.shape.reads(first, 10) for first in (0, 10, 90, 100)] == [True, False, True, False]
    _, plan = plan_head([np.array([0], np.int32)], [Hidden()])
    assert plan.shape.ids == frozenset()
    assert plan.shape.rows == 0
