"""Style and types are tests like any other."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _run(*command: str) -> None:
    result = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "check", [("ruff", "check"), ("ruff", "format", "--check"), ("mypy",), ("mypy", "--platform", "win32")], ids=" ".join
)
def test_python(check):
    _run(*check)


def test_clang_format():
    import clang_format

    tool = Path(clang_format.__file__).parent / "data/bin/clang-format"
    files = [p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".h", ".cpp") and "third_party" not in p.parts]
    result = subprocess.run([tool, "--dry-run", "--Werror", *files], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
