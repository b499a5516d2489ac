"""The command line as a user meets it: exit status, one clear line for each failure."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cgroup import estream_command, heed_interrupts
from command import run
from paths import DEMO

from estream.package.package import Package


def test_control_c_ends_the_command_line_without_a_traceback(demo_package: Package):
    process = subprocess.Popen(
        estream_command("run", demo_package.path, "--tokens", "500", "--repeat", "100000"),
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    try:
        # The reader lanes are there: the sweeps have begun.
        deadline = time.monotonic() + 60
        while len(os.listdir(f"/proc/{process.pid}/task")) < 5 and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in stderr


FAILURES = {
    ("run", "nowhere", "--tokens", "3"): (1, "nowhere: there is no such folder"),
    ("run", "PKG"): (2, "give one of --prompt, --prompt-file, --chat, --messages and --tokens"),
    ("run", "PKG", "--tokens", "3", "--prompt", "x"): (2, "give one of"),
    ("run", "PKG", "--tokens", "0"): (2, "--tokens must be at least 1"),
    ("run", "PKG", "--tokens", "3", "--memory", "lots"): (2, "'lots' is not a size"),
    ("run", "PKG", "--tokens", "3", "--memory", "1MiB"): (1, "below the floor of"),
    ("run", "PKG", "--tokens", "3", "--device", "tpu"): (2, "device must be cpu"),
    ("run", "PKG", "--tokens", "3", "--activations", "int2"): (2, "activations must be int8 or float"),
    ("run", "PKG", "--tokens", "9999999999"): (1, "the prompt has 9999999999 tokens, the model's context is 2048"),
    ("run", "PKG", "--prompt", ""): (1, "the prompt is empty"),
    ("run", "PKG", "--chat", "Hello"): (1, "the checkpoint came without a chat template"),
    ("run", "PKG", "--messages", "absent.json"): (1, "absent.json: cannot be read (No such file or directory)"),
    ("run", "PKG", "--prompt-file", "absent.txt"): (1, "absent.txt: cannot be read (No such file or directory)"),
    ("convert", "absent", "x.estream"): (1, "absent: no such folder, and not a hub id"),
    ("convert", "PKG", "x.estream"): (1, "config.json: missing"),
    ("convert", "DEMO", "PKG"): (1, "exists already; --force"),
    ("convert", "DEMO", "x.estream", "--bits", "3"): (2, "--bits must be 4 or 8"),
    ("synth", "gpt-9", "x.estream"): (2, "'gpt-9' is not a known shape; known: olmoe-1b-7b"),
    ("synth", "olmoe-1b-7b", "x.estream", "--layers", "99"): (2, "--layers must be 1 to 16 for olmoe-1b-7b"),
    ("synth", "olmoe-1b-7b", "x.estream", "--routing-skew", "11"): (2, "--routing-skew must be 0 to 10, not 11"),
    ("doctor", "--folder", "absent"): (1, "absent: no such folder"),
}


@pytest.mark.parametrize("command", FAILURES, ids=" ".join)
def test_failures_are_one_line_and_the_right_status(command, demo_package: Package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, message = FAILURES[command]
    result = run(*({"PKG": demo_package.path, "DEMO": DEMO}.get(word, word) for word in command))
    assert result.returncode == status
    assert result.stderr.startswith("estream: error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_trouble_outside_is_one_line_too(demo_package: Package, tmp_path: Path):
    env = os.environ | {"ESTREAM_KERNELS": "sse9"}
    command = estream_command("run", demo_package.path, "--tokens", "3")
    unknown = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (2, 1)
    command = estream_command("convert", DEMO, tmp_path / "x.estream")
    assert subprocess.run(command, env=env, capture_output=True, check=False).returncode == 2
    assert not (tmp_path / "x.estream").exists()
    command = estream_command("run", demo_package.path, "--tokens", "3")
    with open("/dev/full", "w") as full:
        broken = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (broken.returncode, len(broken.stderr.splitlines())) == (1, 1)
    assert "No space left" in broken.stderr
    headed = subprocess.run(
        ["sh", "-c", '"$@" | head -c 1', "sh", *map(str, command)], capture_output=True, text=True, check=True
    )
    assert "Traceback" not in headed.stderr
    traced = run("run", demo_package.path, "--tokens", "3", "--trace", tmp_path / "no/trace.json")
    assert (traced.returncode, traced.stdout) == (1, "")
    assert "no such folder to write a trace into" in traced.stderr


def test_wrong_usage_has_status_2_and_no_traceback():
    for arguments in (["--nonsense"], ["nonsense"], ["run"], ["run", "x", "--top", "none"]):
        result = run(*arguments)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr
    assert run("--version").stdout.startswith("estream ")
    assert run("run", "--help").returncode == 0
