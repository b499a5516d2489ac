"""Shared fixtures: the demo checkpoint, its packages, and tiny random models of transformers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from estream.conversion import ConvertOptions, convert
from estream.package.package import Package

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "demo/debian-sections"
HELD_OUT = ROOT / "demo/held_out.jsonl"


@pytest.fixture(autouse=True, scope="session")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Profiles of this machine are kept here and not in the user's cache."""
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESTREAM_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def demo_package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The demo model at the default quantisation."""
    return convert(DEMO, tmp_path_factory.mktemp("demo") / "demo.estream")


@pytest.fixture(scope="session")
def demo_package_8bit(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return convert(DEMO, tmp_path_factory.mktemp("demo8") / "demo8.estream", ConvertOptions(bits=8))
