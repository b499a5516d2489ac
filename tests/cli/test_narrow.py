"""What commands print: values on a narrow terminal are folded, never cut, and JSON holds numbers alone."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from cgroup import estream_command
from command import run_apart

from estream.cli.output import print_json
from estream.engine.timeline import Timeline
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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_json_never_holds_what_is_no_number(value: float, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    with pytest.raises(ValueError, match="JSON"):
        print_json({"fine": 1.0, "rows": [{"speed": value}]})
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="JSON"):
        Timeline().save(tmp_path / "trace.json", {"speed": value})
    assert not (tmp_path / "trace.json").exists()


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
