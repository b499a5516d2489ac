"""Every example runs, and says what its text promises."""

import subprocess
import sys

import pytest
from paths import ROOT

from estream.package.package import Package

SAYS = {
    "moderation": ["hold back    games", "Tool to inspect"],
    "intent": ["network", "languages"],
    "search": ["strategy game"],
    "corpus": ["'Description: zq"],
    "answers": ["->  net"],
}


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "demo"))
def test_an_example_runs(demo_package: Package, name: str):
    command = [sys.executable, ROOT / f"examples/{name}.py", demo_package.path]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for words in SAYS[name]:
        assert words in result.stdout
