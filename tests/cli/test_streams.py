"""Closed standard streams, and locales that cannot print everything."""

import os
import subprocess
from pathlib import Path

import pytest
from cgroup import estream_command
from command import run
from paths import DEMO

from estream.package.package import Package


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_takes_nothing_and_disturbs_nothing(closed: str, demo_package: Package, tmp_path: Path):
    for arguments, status in (
        (("run", demo_package.path, "--tokens", "3"), 0),
        (("run", tmp_path / "nowhere", "--tokens", "3"), 1),
        (("run",), 2),
    ):
        command = ["sh", "-c", f'"$@" {closed}', "sh", *map(str, estream_command(*arguments))]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == status, result.stderr
        assert "Error" not in result.stderr
        assert (result.stdout == "") == (">&-" in closed.split() or status > 0)


def test_a_prompt_from_closed_standard_input_is_refused(demo_package: Package):
    command = ["sh", "-c", '"$@" <&-', "sh", *map(str, estream_command("run", demo_package.path, "--prompt-file", "-"))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "estream: error: standard input is closed, so there is no prompt to read from it\n"


def test_what_a_locale_cannot_print_is_escaped(tmp_path: Path):
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = estream_command("inspect", tmp_path / "żółw")
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert r"\u017c" in result.stderr


def test_a_path_that_is_not_utf8_works_everywhere(demo_package: Package, tmp_path: Path):
    folder = os.fsencode(tmp_path) + b"/a\xff\xfeb.estream"
    subprocess.run(["cp", "-r", os.fsencode(demo_package.path), folder], check=True)
    for arguments in (
        ("inspect", folder),
        ("verify", folder),
        ("plan", folder, "--memory", "300MiB"),
        ("doctor", "--folder", folder),
    ):
        for more in ((), ("--json",)):
            result = subprocess.run(estream_command(*arguments, *more), capture_output=True, check=False)
            assert result.returncode == 0, (arguments, result.stderr)
            assert b"Error" not in result.stderr
        # In JSON each such byte is a lone surrogate; in text it is itself.
        if arguments[0] in ("inspect", "verify"):
            assert rb"a\udcff\udcfeb.estream" in result.stdout
    assert folder in subprocess.run(estream_command("inspect", folder), capture_output=True, check=True).stdout.replace(
        b"\n", b""
    )
    assert b"\xff" in subprocess.run(estream_command("inspect", folder + b"x"), capture_output=True, check=False).stderr


def test_convert_from_and_to_a_path_that_is_not_utf8(tmp_path: Path):
    top = os.fsencode(tmp_path)
    source, target = top + b"/from\xff", top + b"/to\xfe.estream"
    subprocess.run(["cp", "-r", os.fsencode(DEMO), source], check=True)
    for more in ((), ("--force", "--json")):
        made = subprocess.run(estream_command("convert", source, target, *more), capture_output=True, check=False)
        assert made.returncode == 0, made.stderr
        assert (rb"to\udcfe.estream" if more else target) in made.stdout.replace(b"\n", b"")
    assert sorted(os.listdir(top)) == [b"from\xff", b"to\xfe.estream"]
    prompt = top + b"/prompt\xfd"
    with open(prompt, "w", encoding="utf-8") as file:
        file.write("Description: a game\nSection:")
    command = estream_command("run", target, "--memory", "400MiB", "--prompt-file", prompt, "--trace", top + b"/trace\xfc.json")
    answer = subprocess.run(command, capture_output=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert b"games" in answer.stdout
    shown = subprocess.run(estream_command("inspect", target), capture_output=True, check=True).stdout
    assert b"from\xff (" in shown


def test_a_prompt_that_is_no_text_is_refused(demo_package: Package):
    result = run("run", demo_package.path, "--prompt", "a\udcffb")
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert "--prompt: not UTF-8 text" in result.stderr
