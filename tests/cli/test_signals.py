"""Signals: an interrupt, SIGTERM and SIGHUP clean up, say one line and have their own status."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cgroup import estream_command
from layouts import SHAPE
from tiny import make_olmoe

from estream.package.package import Package

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def heed_signals() -> None:
    for number in STATUS:
        signal.signal(number, signal.SIG_DFL)


def stop(command: list[str | Path], number: int, ready: Callable[[], object], **options) -> tuple[int, str]:
    """Send a signal when the command is ready; returns its status and what it said."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=heed_signals, **options
    )
    deadline = time.monotonic() + 60
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    return process.returncode, said


@pytest.mark.parametrize("number", STATUS)
@pytest.mark.parametrize("command", ["convert", "synth"])
def test_nothing_is_left_of_a_package(number: int, command: str, tmp_path: Path):
    words = ("olmoe-1b-7b", tmp_path / "out.estream")
    if command == "convert":
        make_olmoe(tmp_path / "source", SHAPE)
        words = (tmp_path / "source", tmp_path / "out.estream")
    program = (
        "import time; from estream.package.writer import PackageWriter; from estream.cli.main import main\n"
        "add = PackageWriter.add_page\n"
        "PackageWriter.add_page = lambda *args: (time.sleep(0.5), add(*args))[1]\n"
        "main()"
    )
    line = [sys.executable, "-c", program, command, *words]
    status, said = stop(line, number, lambda: list(tmp_path.glob(".out.estream.partial-*/pages.bin")))
    assert status == STATUS[number]
    assert len(said.splitlines()) == 1
    assert "Traceback" not in said
    assert [name for name in os.listdir(tmp_path) if "estream" in name] == []


@pytest.mark.parametrize("number", STATUS)
def test_a_signal_during_imports_is_one_line(number: int, tmp_path: Path):
    # NumPy is imported slowly here, and says when.
    (tmp_path / "numpy.py").write_text(
        "import pathlib, time\npathlib.Path(__file__).with_name('now').touch()\ntime.sleep(30)\n"
    )
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    status, said = stop(estream_command("--version"), number, (tmp_path / "now").exists, env=env)
    assert status == STATUS[number]
    assert said.startswith("estream: ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_sweep_is_stopped_too(number: int, demo_package: Package):
    begin = time.monotonic()
    command = estream_command("run", demo_package.path, "--tokens", "500", "--repeat", "100000")
    status, said = stop(command, number, lambda: time.monotonic() - begin > 3)
    assert (status, len(said.splitlines())) == (STATUS[number], 1)


def test_what_the_caller_ignores_is_ignored(demo_package: Package):
    begin = time.monotonic()
    process = subprocess.Popen(
        estream_command("run", demo_package.path, "--tokens", "100", "--repeat", "300"),
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    while process.poll() is None and time.monotonic() - begin < 60:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.05)
    assert process.wait(10) == 0
