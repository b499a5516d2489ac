"""End to end: sweeps that are interrupted or cancelled leave a usable model."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from demo_answers import IDS, streaming
from loaded import instead_of

from estream.errors import CancelledError
from estream.package.package import Package


class Counted:
    """The device's experts; what ``at_fifth`` does comes before the fifth call."""

    def __init__(self, at_fifth: Callable[[], object]) -> None:
        self._at_fifth = at_fifth
        self.pages: list[int] = []

    def __call__(self, original: Callable[..., None]) -> Callable[..., None]:
        def experts(pages: Sequence[Any]) -> None:
            self.pages.append(len(pages))
            if len(self.pages) == 5:
                self._at_fifth()
            original(pages)

        return experts


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_stops_and_leaves_the_model_usable(demo_package: Package, demo_logits: np.ndarray):
    with streaming(demo_package) as model:
        with instead_of(model, "experts", Counted(_interrupt)), pytest.raises(KeyboardInterrupt):
            model.prefill(IDS)
        np.testing.assert_array_equal(model.prefill(IDS).logits, demo_logits)


@pytest.mark.parametrize("resident", [False, True])
def test_a_cancelled_sweep_stops_at_its_next_run_of_pages(demo_package: Package, demo_logits: np.ndarray, resident: bool):
    with streaming(demo_package) as model:
        if resident:
            model.prefill(IDS)
        calls = Counted(model.cancel)
        with instead_of(model, "experts", calls), pytest.raises(CancelledError):
            model.prefill(IDS)
        assert len(calls.pages) == 5
        if resident:
            assert max(calls.pages) > 1
        np.testing.assert_array_equal(model.prefill(IDS).logits, demo_logits)
