"""Style and types are tests like any other."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: What is found depends on the system, so each has a cache of its own.
WINDOWS = ("mypy", "--platform", "win32", "--cache-dir", ".mypy_cache/win32")
CHECKS = [("mypy",), WINDOWS, ("ruff", "check"), ("ruff", "format", "--check")]

Running = dict[tuple[str, ...], "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """All checks side by side: each of the slow ones takes one processor."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = {check: subprocess.Popen([sys.executable, "-m", *check], cwd=ROOT, **output) for check in CHECKS}
    yield processes
    for process in processes.values():
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("check", CHECKS, ids=" ".join)
def test_python(check: tuple[str, ...], running: Running):
    output, _ = running[check].communicate()
    assert running[check].returncode == 0, output


def test_no_room_imports_from_above():
    """The rooms and their order stand in pyproject.toml."""
    program = "from importlinter.cli import lint_imports_command as lint; lint(['--no-cache', '--no-logo'])"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert "1 kept, 0 broken" in result.stdout


def test_clang_format():
    import clang_format

    tool = Path(clang_format.__file__).parent / "data/bin/clang-format"
    files = [p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".h", ".cpp") and "third_party" not in p.parts]
    result = subprocess.run([tool, "--dry-run", "--Werror", *files], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_native_folders_include_only_those_below():
    csrc = ROOT / "csrc"
    order = ["third_party", "platform", "kernels", "core", "python"]
    for folder in order[1:]:
        allowed = order[: order.index(folder) + 1]
        for file in (csrc / folder).iterdir():
            for target in re.findall(r'#include "([^"]+)"', file.read_text()):
                assert (csrc / target).is_file(), f"{file.name} includes {target}, which is not a path below csrc"
                assert target.split("/")[0] in allowed, f"{folder}/{file.name} includes {target}"
