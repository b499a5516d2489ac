"""NaN and infinity are never an answer: an error names where they appear first."""

import numpy as np
import pytest
from demo_answers import IDS
from loaded import instead_of
from safetensors.numpy import load_file, save_file

import estream
from estream.engine.finite import is_finite
from estream.errors import NumericError, PackageError


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_is_found(value: float):
    rows = np.zeros((3, 1000), np.float32)
    assert is_finite(rows)
    rows[1, 777] = value
    assert not is_finite(rows)


@pytest.mark.parametrize(
    ("layer", "place"), [(0, "layer 0 gives"), (3, "layer 3 gives"), (5, "the last layer or the head gives")]
)
def test_the_first_layer_is_named_and_the_model_stays_usable(layer: int, place: str, demo_package, demo_logits):
    with estream.load(demo_package.path) as model:

        def poison(original):
            def mlp_or_experts(pages):
                original(pages)
                if pages[0][0].layer == layer:
                    model._device._residual[-1, 5] = np.nan

            return mlp_or_experts

        with instead_of(model, "experts", poison), pytest.raises(NumericError, match=place):
            model.prefill(IDS)
        np.testing.assert_array_equal(model.prefill(IDS).logits, demo_logits)


def test_a_final_norm_with_nan_is_refused(demo_copy):
    path = demo_copy.path / "resident.safetensors"
    tensors = load_file(path)
    tensors["final_norm"][3] = np.nan
    save_file(tensors, path)
    with pytest.raises(PackageError, match="final_norm holds values that are no finite numbers"):
        demo_copy.final_norm()
    path.write_bytes(b"\0" * 10_000_000)
    with pytest.raises(PackageError, match="resident.safetensors: cannot be read .9.54 MiB, at most"):
        demo_copy.final_norm()
