"""A safetensors file: its length and header are the input, the same bytes of weights follow."""

import json
import struct
from pathlib import Path
from random import Random

import numpy as np

from fuzz import fixtures
from fuzz.harness import Run, Target
from fuzz.mutate import mutate_bytes, mutate_json


def _prepare(folder: Path) -> Run:
    source = fixtures.make_checkpoint(folder / "source")
    weights = source / "model.safetensors"
    whole = weights.read_bytes()
    payload = whole[8 + struct.unpack("<Q", whole[:8])[0] :]

    def run(data: bytes) -> None:
        weights.write_bytes(data + payload)
        fixtures.convert_and_answer(source, folder / "out.estream")

    return run


def _mutate(data: bytes, rng: Random) -> bytes:
    if rng.random() < 0.1:
        return mutate_bytes(data, rng)
    header = mutate_json(data[8:], rng)
    return struct.pack("<Q", len(header)) + header


def _seeds() -> dict[str, bytes]:
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in sorted(fixtures.olmoe_shapes().items()):
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    return {"olmoe": struct.pack("<Q", len(text)) + text}


TARGET = Target("safetensors_header", "", _prepare, _mutate, _seeds)
