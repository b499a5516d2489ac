"""End to end: moving bytes changes no bit. Any budget, threads, page residency, batch and chunking give the same logits."""

import numpy as np
import pytest
from budgets import budget
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loaded import instead_of
from tiny_answers import PROMPTS

from estream.api.model import Model
from estream.devices.cpu import activations, head
from estream.engine.options import LoadOptions
from estream.host.sizes import KiB, MiB


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spare=st.integers(0, 8) | st.just(4096),
    threads=st.integers(1, 4),
    lanes=st.integers(1, 8),
    request=st.sampled_from([4 * KiB, 64 * KiB, 2 * MiB]),
    chunk=st.sampled_from([1, 16, 37, 512]),
    window=st.sampled_from([0, 1, 256]),
    pinned=st.sampled_from([None, 0, 300 * KiB]),
    order=st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=8),
    direct=st.booleans(),
)
def test_logits_are_identical(tiny_package, tiny_logits, spare, threads, lanes, request, chunk, window, pinned, order, direct):
    prompts = [PROMPTS[i] for i in order]
    options = LoadOptions(
        budget(tiny_package, prompts, spare * MiB),
        threads,
        lanes=lanes,
        request_bytes=request,
        ring_bytes=window * MiB,
        pinned_bytes=pinned,
        direct_io=direct,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activations, "CHUNK", chunk)
        for module in ("cpu.attention", "cpu.gated_delta"):
            patch.setattr(f"estream.devices.{module}.CHUNK", chunk)
        patch.setattr(activations, "EXPERT_ROWS", max(1, chunk // 2))
        for module in (activations, head):
            patch.setattr(module, "HEAD_ROWS", chunk)
        with Model(tiny_package, options) as model:
            for _ in range(2):
                for index, result in zip(order, model.prefill_batch(prompts), strict=True):
                    np.testing.assert_array_equal(result.logits, tiny_logits[index])


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wrong=st.frozensets(st.integers(0, 63), max_size=30),
    keep=st.booleans(),
    spare=st.integers(0, 3),
    prompt=st.sampled_from(PROMPTS[:2]),
)
def test_a_wrong_prediction_changes_no_bit_and_deadlocks_nothing(tiny_package, tiny_logits, wrong, keep, spare, prompt):
    """Whatever is predicted, in the smallest ring: missed experts are read in their place."""
    with Model(tiny_package, LoadOptions(budget(tiny_package, [prompt], spare * MiB), 1, request_bytes=64 * KiB)) as model:
        with instead_of(model, "experts_to_prefetch", lambda own: lambda *args: own(*args) | wrong if keep else wrong):
            for _ in range(2):
                result = model.prefill(prompt)
                np.testing.assert_array_equal(result.logits, tiny_logits[PROMPTS.index(prompt)])
        prediction = result.stats.prediction
        assert prediction["predicted"] >= (len(wrong) if not result.stats.config["pinned_pages"] else 0)
