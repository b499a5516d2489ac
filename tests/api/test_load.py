"""Options and budgets that are refused."""

import pytest

import estream
from estream.errors import BudgetError, OptionError
from estream.host import limits
from estream.host.sizes import MiB


def test_bad_options_are_refused(tiny_package):
    for options, message in (
        ({"device": "gpu"}, "device must be cpu or qnn, not 'gpu'"),
        ({"activations": "int4"}, "activations"),
        ({"threads": 0}, "threads"),
        ({"memory": "much"}, "not a size"),
        ({"memory": 1.5e9}, "not a size"),
        ({"memory": "9999999TB"}, "below 1 PiB"),
    ):
        with pytest.raises(OptionError, match=message):
            estream.load(tiny_package.path, **options)


def test_below_the_floor_is_refused_with_the_floor_and_its_parts(tiny_package):
    with pytest.raises(
        BudgetError, match=r"below the floor of .* for 1 tokens: process .*, activations .*, the largest pages"
    ) as e:
        estream.load(tiny_package.path, memory=limits.resident_bytes() // 2)
    with estream.load(tiny_package.path, memory=e.value.floor_bytes + 8 * MiB) as model:
        assert model.prefill([1]).logits.shape == (330,)
        with pytest.raises(BudgetError, match="shorten the prompt"):
            model.prefill_batch([[i % 300, i // 300, *range(298)] for i in range(3000)])
        assert model.prefill([1]).logits.shape == (330,)
