"""``manifest.json`` of a package without its seal, which is put on after each change, as anybody can do."""

import json
import tempfile
from pathlib import Path
from random import Random

from estream.package.document import checksum_of
from estream.package.package import open_package
from estream.package.verify import verify
from fuzz import fixtures
from fuzz.harness import Run, Target
from fuzz.mutate import mutate_json


def _prepare(folder: Path) -> Run:
    package = fixtures.make_package(folder)

    def run(data: bytes) -> None:
        text = data.rstrip()
        if text.endswith(b"}"):
            text = text[:-1] + b',"checksum":"%016x"}' % checksum_of(text)
        (package / "manifest.json").write_bytes(text)
        opened = open_package(package)
        verify(opened)
        fixtures.answer(package)

    return run


def _mutate(data: bytes, rng: Random) -> bytes:
    changed = mutate_json(data, rng)
    try:
        return json.dumps(json.loads(changed), separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return changed


def _seeds() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        values = fixtures.manifest_of(fixtures.make_package(Path(folder)))
    values["source"] = {"kind": "huggingface", "name": "whole"}
    experts = list(range(fixtures.EXPERTS))
    layers = range(fixtures.LAYERS)
    curve = [{"tokens": 1.0, "share": 0.5, "weight": 2.0}, {"tokens": 2.0, "share": 0.75, "weight": 1.0}]
    use = [{"layer": layer, "tokens": 10.0, "chosen": [5.0] * fixtures.EXPERTS, "curve": curve} for layer in layers]
    named = {"olmoe": values, "ordered": values | {"expert_order": [experts for _ in layers], "use": {"layers": use}}}
    return {f"{name}.json": json.dumps(data, separators=(",", ":")).encode() for name, data in named.items()}


TARGET = Target("manifest", ".json", _prepare, _mutate, _seeds)
