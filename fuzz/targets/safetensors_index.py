"""The index of a sharded checkpoint."""

import json
from pathlib import Path
from random import Random

from fuzz import fixtures
from fuzz.harness import Run, Target
from fuzz.mutate import mutate_json

_FILES = ("a.safetensors", "b.safetensors")


def _shard(name: str) -> str:
    return _FILES["layers.1" in name]


def _prepare(folder: Path) -> Run:
    source = fixtures.make_checkpoint(folder / "source")
    (source / "model.safetensors").unlink()
    for file in _FILES:
        fixtures.write_weights(source / file, {n: s for n, s in fixtures.olmoe_shapes().items() if _shard(n) == file})
    # What an index must not lead to.
    (folder / "outside").write_bytes((source / "b.safetensors").read_bytes())

    def run(data: bytes) -> None:
        (source / "model.safetensors.index.json").write_bytes(data)
        fixtures.convert_and_answer(source, folder / "out.estream")

    return run


def _mutate(data: bytes, rng: Random) -> bytes:
    return mutate_json(data, rng)


def _seeds() -> dict[str, bytes]:
    index = {"metadata": {"total_size": 1}, "weight_map": {name: _shard(name) for name in fixtures.olmoe_shapes()}}
    return {"two.json": json.dumps(index).encode()}


TARGET = Target("safetensors_index", ".json", _prepare, _mutate, _seeds)
