"""``estream plan`` and ``estream tune``."""

import subprocess
from pathlib import Path

from cgroup import estream_command

from estream.package.package import Package


def test_plan_and_tune_refuse_wrong_usage_in_one_line(demo_package: Package, tmp_path: Path):
    for arguments in (
        ["--prompt-tokens", "x"],
        ["--prompt-tokens", "0"],
        ["--prompt-tokens", "99999"],
        ["--memory", "much"],
        ["--plot", tmp_path / "a.png"],
        ["--device-profile", "no-such-phone"],
        ["--lanes", "0"],
        ["--request", "5000"],
    ):
        run = subprocess.run(
            estream_command("plan", demo_package.path, *arguments), capture_output=True, text=True, check=False
        )
        assert run.returncode == 2, run.stderr
        assert run.stderr.count("\n") <= 12
        assert "Traceback" not in run.stderr


def test_tune_prints_what_it_measured(demo_package: Package):
    for words in ("measured now", "kept; --force measures again"):
        run = subprocess.run(
            estream_command("tune", demo_package.path, *(["--force"] if words == "measured now" else [])),
            capture_output=True,
            text=True,
            check=True,
        )
        assert words in run.stdout
        for part in ("4 lanes", "expert page", "full attention page", "while reading", "kept in"):
            assert part in run.stdout


def test_a_plan_is_printed_with_its_reasons(demo_package: Package):
    command = estream_command("plan", demo_package.path, "--memory", "300MiB", "--explain")
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for part in ("TTFT", "limit", "predictions", "origin", "measured", "policy", "given", "runner-up"):
        assert part in text


def test_a_budget_sweep_is_drawn(demo_package: Package, tmp_path: Path):
    picture = tmp_path / "knee.png"
    command = estream_command("plan", demo_package.path, "--budget-sweep", "--prompt-tokens", "128", "--plot", picture)
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert text.count("#") > 10
