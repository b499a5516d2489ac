"""A key that is left out of config.json, or null, means what the model's class in transformers makes of it, or is refused.

Generated: for every family, every setting that reading its config asks for, in the layouts of transformers 5 and 4.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from tiny import FAMILIES
from tiny_latent import YARN

from estream.errors import CheckpointError
from estream.models import Family, family_of
from estream.models.config import ModelConfig
from estream.models.consistency import check_config

Values = dict[str, Any]
BASE = {"vocab_size": 330, "num_hidden_layers": 4, "max_position_embeddings": 512}
#: Of the YaRN that several families may have.
STRETCHED = YARN | {"original_max_position_embeddings": 128, "factor": 4.0}
#: What transformers raises where a value, or its absence, is nothing that a model can be made of.
UNUSABLE = (ValueError, TypeError, AttributeError, KeyError, RuntimeError, ZeroDivisionError, StrictDataclassError)


class Asked(dict[str, Any]):
    """A config that notes the keys that are looked up in it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__({key: Asked(value) if isinstance(value, dict) else value for key, value in values.items()})
        self.keys_asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.keys_asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.keys_asked.add(str(key))
        return super().__contains__(key)


def reader(family: str) -> Family:
    return family_of({"architectures": [FAMILIES[family].model.__name__]})


def plain(config: Any) -> Values:
    return json.loads(config.to_json_string())


def whole(family: str, values: Values) -> Values:
    """All settings of a config as transformers' class completes it."""
    return plain(FAMILIES[family].config.from_dict(json.loads(json.dumps(values))))


def as_transformers_4(values: Values) -> Values:
    """The base and the share of rotated values stand outside, a scaling by itself."""
    rope = dict(values["rope_parameters"])
    outside = {key: rope.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    rest = {key: value for key, value in values.items() if key != "rope_parameters"}
    return rest | outside | {"rope_scaling": rope if rope.get("rope_type", "default") != "default" else None}


def bases(family: str) -> Iterator[tuple[str, Values]]:
    values = plain(FAMILIES[family].config(**BASE | next(iter(FAMILIES[family].shapes.values()))))
    yield "as transformers 5", values
    yield "as transformers 4", as_transformers_4(values)
    # transformers cannot stretch the positions of a Mixtral whose config has no size of heads.
    if family not in ("phimoe", "gpt_oss", "mixtral"):
        theirs = {key: value for key, value in STRETCHED.items() if family.startswith("deepseek") or "mscale" not in key}
        partial = {k: v for k, v in values["rope_parameters"].items() if k == "partial_rotary_factor"}
        yield "stretched", values | {"rope_parameters": theirs | partial}


def changes(family: str, values: Values) -> Iterator[tuple[str, Values]]:
    """Each setting that is read left out, and null: below the first level too."""
    asked = Asked(values)
    reader(family).read_config(asked)
    for key in sorted(asked.keys_asked):
        rest = {name: value for name, value in values.items() if name != key}
        yield f"{key} left out", rest
        yield f"{key} null", rest | {key: None}
        inner = values.get(key)
        if isinstance(inner, dict):
            for name in inner:
                fewer = {n: x for n, x in inner.items() if n != name}
                yield f"{key}.{name} left out", rest | {key: fewer}
                yield f"{key}.{name} null", rest | {key: fewer | {name: None}}


def ours(family: str, values: Values) -> ModelConfig | None:
    try:
        config = reader(family).read_config(values)
    except CheckpointError:
        return None
    check_config(config)
    return config


@cache
def runs(family: str, text: str) -> bool:
    """Whether transformers makes a model of these settings that computes."""
    try:
        config = FAMILIES[family].config.from_dict(json.loads(text))
        torch.manual_seed(0)
        torch.set_num_threads(1)
        with torch.no_grad():
            FAMILIES[family].model(config).eval()(input_ids=torch.arange(6)[None])
    except UNUSABLE:
        return False
    return True


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_left_out_is_what_transformers_has_or_refused(family: str):
    wrong: list[str] = []
    accepted = 0
    for shape, values in bases(family):
        assert ours(family, values) is not None, shape
        for change, changed in changes(family, values):
            read = ours(family, changed)
            if read is None:
                continue
            accepted += 1
            try:
                expected = ours(family, whole(family, changed))
            except UNUSABLE:
                wrong.append(f"{shape}: {change}: transformers refuses it")
                continue
            if read != expected:
                wrong.append(f"{shape}: {change}: {read} instead of {expected}")
            elif change.endswith("null") and not runs(family, json.dumps(changed)):
                wrong.append(f"{shape}: {change}: transformers cannot run it")
    assert not wrong, "\n".join(wrong)
    assert accepted > 10
