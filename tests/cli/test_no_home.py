"""A user whom the system does not know, without HOME: every command runs, and says once that no profile is kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import DEMO

from estream.cli.app import app
from estream.package.package import Package

#: Whether a command looks for a measured profile, and so says that there is no place for one.
COMMANDS = {
    "--version": ((), False),
    "doctor": (("--folder", "HERE"), False),
    "convert": (("DEMO", "HERE/new.estream"), False),
    "inspect": (("PKG",), False),
    "verify": (("PKG",), False),
    "plan": (("PKG", "--memory", "400MiB"), True),
    "tune": (("PKG", "--memory", "400MiB"), True),
    "run": (("PKG", "--memory", "400MiB", "--prompt", "a", "--trace", "HERE/trace.json"), True),
    "bench": (("PKG", "--memory", "400MiB", "-p", "16", "-r", "1"), True),
    "score": (("PKG", "--memory", "400MiB", "--text", "a b"), True),
    "classify": (("PKG", "--memory", "400MiB", "--labels", "a,b", "--text", "x"), True),
    "rerank": (
        ("PKG", "--memory", "400MiB", "--query", "a", "--documents", "HERE/rows.txt", "--template", "HERE/t.json"),
        True,
    ),
    "embed": (("PKG", "--memory", "400MiB", "--text", "a"), True),
    "report": (("TRACE", "-o", "HERE/picture.html"), False),
}


def test_every_command_is_tried():
    # What synth writes has gigabytes; it goes the way of convert.
    assert {command.name for command in app.registered_commands} - {"synth"} == set(COMMANDS) - {"--version"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_needs_no_home(name: str, demo_package: Package, trace_file: Path, tmp_path: Path):
    words, looks = COMMANDS[name]
    (tmp_path / "rows.txt").write_text("one\n")
    (tmp_path / "t.json").write_text('{"text": "{query}: {document}", "yes": " games", "no": " devel"}')
    places = {"HERE": str(tmp_path), "PKG": str(demo_package.path), "DEMO": str(DEMO), "TRACE": str(trace_file)}
    arguments = ["/".join(places.get(part, part) for part in word.split("/")) for word in words]
    gone = ("HOME", "USER", "LOGNAME", "ESTREAM_CACHE", "HF_HOME", "MPLCONFIGDIR")
    env = {key: value for key, value in os.environ.items() if key not in gone and not key.startswith("XDG_")}
    program = "import os; os.getuid = lambda: 987654; from estream.cli.main import main; main()"
    command = [sys.executable, "-c", program, name, *arguments]
    result = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("this user has no home") == looks
