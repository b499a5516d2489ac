"""Rotary positions beyond the original context, against transformers and against NumPy written from the papers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from tiny_latent import YARN
from tiny_unusual import LONG_ROPE
from transformers import GptOssConfig, MixtralConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from estream.models.huggingface import HfConfig
from estream.models.huggingface_rope import RopeDefaults, read_rope
from estream.models.rope import Rope, RopeConfig

POSITIONS = np.array([0, 1, 7, 255, 256, 4095, 4096, 20000, 163839], np.int32)


def _angles(config: RopeConfig, positions: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    cosine, sine = np.empty((2, len(positions), config.dims // 2), np.float32)
    Rope(config).angles(positions, np.full(len(positions), length, np.int32), cosine, sine)
    return cosine, sine


def _read(parameters: dict[str, Any], dims: int, context: int = 163840) -> RopeConfig:
    return read_rope(HfConfig({"rope_parameters": parameters, "max_position_embeddings": context}), dims, RopeDefaults())


def test_yarn_follows_the_paper_with_the_values_of_v2_lite():
    """YaRN, section 3.2, in float64: by wavelengths rather than by dimensions."""
    dims, theta = 64, YARN["rope_theta"]
    frequencies = theta ** (-np.arange(0, dims, 2) / dims)
    bounds = [dims * math.log(4096 / (beta * 2 * math.pi)) / (2 * math.log(theta)) for beta in (32, 1)]
    low, high = math.floor(bounds[0]), math.ceil(bounds[1])
    slow = np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
    expected = POSITIONS[:, None] * (frequencies * (1 - slow) + frequencies / 40 * slow)
    config = _read(YARN, dims)
    assert config.magnitude == 1.0
    cosine, sine = _angles(config, POSITIONS, 163840)
    # Angles in float32 are as far off as positions are large.
    tolerance = 1e-7 * POSITIONS[:, None] + 1e-6
    assert (np.abs(cosine - np.cos(expected)) <= tolerance).all()
    assert (np.abs(sine - np.sin(expected)) <= tolerance).all()


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        YARN,
        {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.9, "original_max_position_embeddings": 4096},
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0, "beta_slow": 2.0, "original_max_position_embeddings": 4096},
    ],
    ids=str,
)
def test_scalings_are_those_of_transformers(parameters):
    parameters = {"rope_theta": 10000.0} | parameters
    kind = GptOssConfig if "truncate" in parameters else MixtralConfig
    theirs = kind(rope_parameters=parameters, head_dim=64, max_position_embeddings=163840)
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](theirs)
    expected = torch.from_numpy(POSITIONS).double()[:, None] * frequencies.double()
    cosine, sine = _angles(_read(parameters, 64), POSITIONS, 163840)
    tolerance = (2e-7 * POSITIONS[:, None] + 1e-6) * magnitude
    assert (np.abs(cosine - magnitude * expected.cos().numpy()) <= tolerance).all()
    assert (np.abs(sine - magnitude * expected.sin().numpy()) <= tolerance).all()


@pytest.mark.parametrize(
    ("length", "factors", "magnitude"), [(256, "short_factor", "short_mscale"), (257, "long_factor", "long_mscale")]
)
def test_longrope_depends_on_the_length_of_the_prompt(length, factors, magnitude):
    """LongRoPE as Phi-3.5's own code has it; transformers 5.24 always takes the short factors for this family."""
    config = _read(LONG_ROPE, 16)
    positions = np.arange(length, dtype=np.int32)
    frequencies = LONG_ROPE["rope_theta"] ** (-np.arange(0, 16, 2) / 16) / np.asarray(LONG_ROPE[factors])
    cosine, sine = _angles(config, positions, length)
    expected = positions[:, None] * frequencies
    np.testing.assert_allclose(cosine, np.cos(expected) * LONG_ROPE[magnitude], atol=1e-4)
    np.testing.assert_allclose(sine, np.sin(expected) * LONG_ROPE[magnitude], atol=1e-4)


def test_longrope_of_a_batch_is_that_of_each_prompt():
    config = _read(LONG_ROPE, 16)
    positions, lengths = np.tile(np.arange(250, 256, dtype=np.int32), 2), np.repeat(np.array([256, 300], np.int32), 6)
    cosine, sine = np.empty((2, 12, 8), np.float32)
    Rope(config).angles(positions, lengths, cosine, sine)
    for half, length in ((slice(0, 6), 256), (slice(6, 12), 300)):
        np.testing.assert_array_equal(cosine[half], _angles(config, positions[half], length)[0])
        np.testing.assert_array_equal(sine[half], _angles(config, positions[half], length)[1])


def test_longrope_without_magnitudes_derives_them():
    plain = {key: value for key, value in LONG_ROPE.items() if not key.endswith("mscale")}
    config = _read(plain, 16, context=256 * 32)
    assert config.magnitude == config.long_magnitude == pytest.approx(math.sqrt(1 + math.log(32) / math.log(256)))
