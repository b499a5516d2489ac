"""``estream plan`` and ``estream tune``."""

from pathlib import Path

from command import run, run_apart

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
        refused = run("plan", demo_package.path, *arguments)
        assert refused.returncode == 2, refused.stderr
        assert refused.stderr.count("\n") <= 12
        assert "Traceback" not in refused.stderr


def test_tune_prints_what_it_measured(demo_package: Package):
    for words in ("measured now", "kept; --force measures again"):
        tuned = run("tune", demo_package.path, *(["--force"] if words == "measured now" else []))
        assert words in tuned.stdout
        for part in ("4 lanes", "expert page", "full attention page", "while reading", "kept in"):
            assert part in tuned.stdout


def test_a_plan_is_printed_with_its_reasons(demo_package: Package):
    text = run_apart("plan", demo_package.path, "--memory", "300MiB", "--explain").stdout
    for part in ("TTFT", "limit", "predictions", "origin", "measured", "policy", "given", "runner-up"):
        assert part in text


def test_a_budget_sweep_is_drawn(demo_package: Package, tmp_path: Path):
    picture = tmp_path / "knee.png"
    text = run("plan", demo_package.path, "--budget-sweep", "--prompt-tokens", "128", "--plot", picture).stdout
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert text.count("#") > 10
