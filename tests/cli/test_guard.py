"""The last guard: whatever goes wrong, one line and the right status; where it happened, only on demand."""

import resource
import subprocess
from pathlib import Path

import pytest
from cgroup import estream_command
from command import run

from estream.cli import guard, inspect
from estream.package.package import Package


class Panic(BaseException):
    """As the exceptions of Rust libraries: none of Exception's."""


RAISED = {
    "bug": (TypeError("unexpected\nthing"), "this is a bug in estream, please report it: TypeError: unexpected thing"),
    "panic": (Panic("at src/lib.rs"), "this is a bug in estream, please report it: Panic: at src/lib.rs"),
    "recursion": (RecursionError("maximum recursion depth exceeded"), "nested deeper"),
    "memory": (MemoryError("std::bad_alloc"), "out of memory: the next piece does not fit, "),
    "numpy": (MemoryError("Unable to allocate 4.00 GiB"), "(Unable to allocate 4.00 GiB)"),
    "threads": (RuntimeError("can't start new thread"), "ulimit -u"),
    "system": (OSError(28, "No space left on device", "/x"), "/x: No space left on device"),
}


@pytest.mark.parametrize("name", RAISED)
def test_any_exception_is_one_line(name: str, demo_package: Package, monkeypatch: pytest.MonkeyPatch):
    error, message = RAISED[name]

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(inspect, "open_package", fail)
    result = run("inspect", demo_package.path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("estream: error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    traced = run("--debug", "inspect", demo_package.path)
    assert "Traceback" in traced.stderr
    assert traced.returncode == 1
    assert not guard.Debug.on or run("--version").returncode == 0


def test_names_from_strangers_do_not_steer_the_terminal(tmp_path: Path):
    result = run("inspect", tmp_path / "a\x1b[2Jb\nc")
    assert len(result.stderr.splitlines()) == 1
    assert "a\\x1b[2Jb\\nc" in result.stderr
    result = run("inspect", tmp_path / ("x" * 100_000))
    assert len(result.stderr) < 2 * guard.LONGEST_MESSAGE


def test_wrong_usage_is_one_line():
    for arguments in (["--nonsense"], ["nonsense"], ["run"], ["run", "x", "--top", "none"], ["inspect", "a", "b"]):
        result = run(*arguments)
        assert result.returncode == 2
        assert len(result.stderr.splitlines()) == 1, result.stderr
    helped = run()
    assert (helped.returncode, helped.stdout) == (2, "")
    assert helped.stderr.startswith("Usage: ")


def test_an_address_limit_is_said(demo_package: Package):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))

    command = estream_command("run", demo_package.path, "--tokens", "9", "--memory", "2GiB", "--threads", "64")
    result = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("estream: error: ")
