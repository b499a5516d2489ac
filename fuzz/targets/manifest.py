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
    return {"olmoe.json": json.dumps(values, separators=(",", ":")).encode()}


TARGET = Target("manifest", ".json", _prepare, _mutate, _seeds)
