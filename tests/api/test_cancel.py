"""End to end: sweeps that are interrupted or cancelled leave a usable model."""

import numpy as np
import pytest
from demo_answers import IDS, streaming

from estream.errors import CancelledError
from estream.package.package import Package


def test_an_interrupt_stops_and_leaves_the_model_usable(demo_package: Package, demo_logits: np.ndarray):
    with streaming(demo_package) as model:
        original, calls = model._device.experts, []

        def interrupted(pages):
            calls.append(pages)
            if len(calls) == 5:
                raise KeyboardInterrupt
            original(pages)

        model._device.experts = interrupted
        with pytest.raises(KeyboardInterrupt):
            model.prefill(IDS)
        model._device.experts = original
        np.testing.assert_array_equal(model.prefill(IDS).logits, demo_logits)


@pytest.mark.parametrize("resident", [False, True])
def test_a_cancelled_sweep_stops_at_its_next_run_of_pages(demo_package: Package, demo_logits: np.ndarray, resident: bool):
    with streaming(demo_package) as model:
        if resident:
            model.prefill(IDS)
        original, calls = model._device.experts, []

        def slow(pages):
            calls.append(pages)
            if len(calls) == 5:
                model.cancel()
            original(pages)

        model._device.experts = slow
        with pytest.raises(CancelledError):
            model.prefill(IDS)
        assert len(calls) == 5
        if resident:
            assert max(map(len, calls)) > 1
        model._device.experts = original
        np.testing.assert_array_equal(model.prefill(IDS).logits, demo_logits)
