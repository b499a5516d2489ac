"""Models that the NPU's graphs do not compute are refused by name."""

from dataclasses import replace

import pytest

from estream.conversion.npu.support import FAMILIES, check_supported
from estream.errors import OptionError
from estream.models import family_of
from estream.models.config import ModelConfig
from estream.models.published_shapes import SHAPES


def config_of(model: str) -> ModelConfig:
    return family_of(SHAPES[model]).read_config(SHAPES[model])


@pytest.mark.parametrize("model", ["olmoe-1b-7b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite", "mixtral-8x7b", "qwen3-30b-a3b"])
def test_published_models_of_five_families_are_computed(model):
    config = config_of(model)
    assert config.family in FAMILIES
    check_supported(config)


@pytest.mark.parametrize("model", ["qwen3-next-80b-a3b", "gpt-oss-20b"])
def test_other_families_are_refused(model):
    config = config_of(model)
    with pytest.raises(OptionError, match=rf"the family {config.family} is not one .*--device cpu"):
        check_supported(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "layer"}, "layer norms"),
        ({"head_bias": True}, "a bias of the head"),
        ({"logits_factor": 2.0}, "factors of embedding, residual or logits"),
        ({"attention": {"sinks": True}}, "attention sinks"),
        ({"attention": {"output_bias": True}}, "a bias or gate of attention's output"),
        ({"moe": {"scoring": "sigmoid"}}, "sigmoid routing"),
        ({"moe": {"router_bias": True}}, "biases of router or experts"),
    ],
)
def test_what_the_graphs_lack_is_named(changes, message):
    config = config_of("olmoe-1b-7b")
    for name, value in changes.items():
        config = replace(config, **{name: replace(getattr(config, name), **value) if isinstance(value, dict) else value})
    with pytest.raises(OptionError, match=f"this olmoe has {message}, and the NPU's graphs do not; use --device cpu"):
        check_supported(config)
