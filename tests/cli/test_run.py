"""``estream run``."""

import json
import subprocess
from pathlib import Path

from cgroup import estream_command
from command import run

import estream
from estream.package.package import Package

PROMPT = "Description: A web server written in C\nSection:"


def test_a_run_prints_tokens_and_costs(demo_package: Package):
    result = run("run", demo_package.path, "--prompt", PROMPT, "--top", "3")
    assert result.returncode == 0
    for word in ("next token", "TTFT", "computing", "waiting", "read", "peak memory", "direct I/O"):
        assert word in result.stdout


def test_a_run_as_json_has_the_promised_keys(demo_package: Package):
    facts = json.loads(run("run", demo_package.path, "--prompt", PROMPT, "--memory", "300MiB", "--json").stdout)
    costs = "ttft_s prompt_tokens peak_rss_bytes budget_bytes arena_bytes bytes_read read_s compute_s stall_s"
    assert {*costs.split(), "top", "direct_io", "device", "config"} <= set(facts)
    assert facts["budget_bytes"] == 300 << 20
    assert [set(t) for t in facts["top"]] == [{"id", "token", "logprob"}] * 5
    with estream.load(demo_package.path) as model:
        expected = model.top(model.prefill(PROMPT), 5)
        assert facts["prompt_tokens"] == len(model.encode(PROMPT))
    assert [(t["id"], t["token"], t["logprob"]) for t in facts["top"]] == [(t.id, t.token, t.logprob) for t in expected]


def test_prompts_from_files_and_random_ids(demo_package: Package, tmp_path: Path):
    (tmp_path / "prompt.txt").write_text(PROMPT)
    from_file = json.loads(run("run", demo_package.path, "--prompt-file", tmp_path / "prompt.txt", "--json").stdout)
    from_text = json.loads(run("run", demo_package.path, "--prompt", PROMPT, "--json").stdout)
    assert from_file["top"] == from_text["top"]
    first, second = (json.loads(run("run", demo_package.path, "--tokens", "9", "--json").stdout) for _ in range(2))
    assert first["top"] == second["top"]
    assert first["prompt_tokens"] == 9


def test_a_prompt_from_an_editor_or_standard_input_is_the_prompt(demo_package: Package, tmp_path: Path):
    (tmp_path / "prompt.txt").write_text(PROMPT + "\n")
    from_text = json.loads(run("run", demo_package.path, "--prompt", PROMPT, "--json").stdout)
    for path, text in ((tmp_path / "prompt.txt", ""), ("-", PROMPT + "\n")):
        command = estream_command("run", demo_package.path, "--prompt-file", path, "--json")
        result = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        assert json.loads(result.stdout)["top"] == from_text["top"]
