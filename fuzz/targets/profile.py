"""A device profile: one given to ``estream plan``, and the one that a load finds in the user's cache."""

from pathlib import Path
from random import Random

import estream
from estream.configurator.profile import read_profile
from fuzz import fixtures
from fuzz.harness import FUZZ, Run, Target
from fuzz.mutate import mutate_json


def _prepare(folder: Path) -> Run:
    package = fixtures.make_package(folder)
    file = folder / "profile.json"

    def run(data: bytes) -> None:
        file.write_bytes(data)
        read_profile(file)
        plan = estream.plan(package, memory=fixtures.MEMORY, prompt_tokens=64, device_profile=file)
        plan.to_json()

    return run


def _mutate(data: bytes, rng: Random) -> bytes:
    return mutate_json(data, rng)


def _seeds() -> dict[str, bytes]:
    folder = FUZZ.parent / "src/estream/configurator/profiles"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("sm8[67]50*.json"))}


TARGET = Target("profile", ".json", _prepare, _mutate, _seeds)
