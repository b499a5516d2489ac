"""``config.json`` of a checkpoint. Where a config is taken, tensors of just its shapes lie beside it."""

import json
from pathlib import Path
from random import Random
from typing import Any

from estream.conversion.convert import all_refs
from estream.errors import EstreamError
from estream.models import family_of
from fuzz import fixtures
from fuzz.harness import Run, Target
from fuzz.mutate import mutate_json

_MOST_WEIGHTS = 1 << 20


def _sizes(value: Any) -> list[int]:
    """All whole numbers in a value."""
    if isinstance(value, dict):
        return [n for item in value.values() for n in _sizes(item)]
    if isinstance(value, list):
        return [n for item in value for n in _sizes(item)]
    return [value] if isinstance(value, int) else []


def _shapes(data: bytes) -> dict[str, tuple[int, ...]] | None:
    """The tensors of a small config; None for one that estream refuses, or that is too large to make tensors for."""
    try:
        values = json.loads(data)
        layers = [v.get("num_hidden_layers") for v in (values, values.get("text_config") or {})]
        if max(_sizes(layers), default=0) > 8 or max(_sizes(values), default=0) > 1 << 20:
            return None
        family = family_of(values)
        shapes = fixtures.shapes_of(all_refs(family.tensors(family.read_config(values), frozenset())))
    except (EstreamError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    total = 0
    for shape in shapes.values():
        weights = 1
        for length in shape:
            weights *= length
        total += weights
    return shapes if total <= _MOST_WEIGHTS else None


def _prepare(folder: Path) -> Run:
    source = fixtures.make_checkpoint(folder / "source")
    weights = source / "model.safetensors"
    plain = weights.read_bytes()

    def run(data: bytes) -> None:
        (source / "config.json").write_bytes(data)
        shapes = _shapes(data)
        if shapes is None:
            weights.write_bytes(plain)
        else:
            fixtures.write_weights(weights, shapes)
        fixtures.convert_and_answer(source, folder / "out.estream")

    return run


def _mutate(data: bytes, rng: Random) -> bytes:
    return mutate_json(data, rng)


def _seeds() -> dict[str, bytes]:
    return {"olmoe.json": json.dumps(fixtures.CONFIG).encode()}


TARGET = Target("config", ".json", _prepare, _mutate, _seeds)
