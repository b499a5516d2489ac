"""Options of every type of whole number, and no other."""

import numpy as np
import pytest

import estream
from estream.engine.options import LoadOptions
from estream.errors import OptionError


def test_whole_numbers_of_numpy_are_options(tiny_package, tiny_logits):
    for kind in (np.int64, np.uint8, np.int32):
        with estream.load(tiny_package.path, threads=kind(2)) as model:
            assert model.prefill([1, 2]).stats.config["threads"] == 2
    assert type(LoadOptions(threads=np.int64(2)).threads) is int


@pytest.mark.parametrize("threads", [True, 2.0, "2", np.float64(2), np.bool_(True)])
def test_what_is_no_whole_number_is_refused(threads: object):
    with pytest.raises(OptionError, match="threads must be a whole number, not"):
        LoadOptions(threads=threads).check()


@pytest.mark.parametrize("device", ["CPU", "cuda", "", None])
def test_a_device_that_is_none_names_those_that_are(device: str, tiny_package):
    with pytest.raises(OptionError, match="^device must be cpu or qnn, not ") as refused:
        estream.load(tiny_package.path, device=device)
    assert "convert" not in str(refused.value)
