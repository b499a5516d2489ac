"""Values on a narrow terminal: folded, never cut."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import pytest
from cgroup import estream_command
from command import run_apart

from estream.package.package import Package

_STYLES = re.compile(r"\x1b\[[0-9;]*m")
_BLANK = re.compile(r"\s+")
# A published machine: what this process takes is no part of the numbers.
MACHINE = ("--device-profile", "sm8850-npu")
COMMANDS = {
    "inspect": ("inspect",),
    "explain": ("plan", *MACHINE, "--prompt-tokens", "16,2048", "--explain"),
    "budgets": ("plan", *MACHINE, "--budget-sweep", "--prompt-tokens", "16"),
}


def on_a_terminal(columns: int, *arguments: object) -> str:
    """What a command prints on a terminal of so many columns, without styles."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    printed = b""
    command = estream_command(*arguments)
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=env) as process:
        os.close(theirs)
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            printed += part
    os.close(ours)
    assert process.returncode == 0
    return _STYLES.sub("", printed.decode())


@pytest.mark.parametrize("name", COMMANDS)
def test_forty_columns_lose_no_value(name: str, demo_package: Package):
    command, *options = COMMANDS[name]
    wide = run_apart(command, demo_package.path, *options).stdout
    narrow = on_a_terminal(40, command, demo_package.path, *options)
    assert "…" not in narrow
    assert len(wide.splitlines()) < len(narrow.splitlines())
    together = _BLANK.sub("", narrow)
    cells = [cell for line in wide.splitlines() for cell in re.split(r"\s{2,}", line.strip()) if cell]
    assert len(cells) > 15
    assert not [cell for cell in cells if _BLANK.sub("", cell) not in together]
