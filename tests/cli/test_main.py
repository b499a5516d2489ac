"""The command line as a user meets it: output, exit status, one clear line for each failure."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cgroup import estream_command
from command import run
from paths import DEMO

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


def test_convert_inspect_and_verify(tmp_path: Path):
    target = tmp_path / "demo.estream"
    facts = json.loads(run("convert", DEMO, target, "--bits", "8", "--json").stdout)
    assert facts["quantization"].items() >= {"expert_bits": 8, "dense_bits": 8, "group": 64}.items()
    assert json.loads(run("inspect", target, "--json").stdout) == {k: v for k, v in facts.items() if k != "seconds"}
    shown = run("inspect", target).stdout
    for word in ("olmoe", "16 experts", "8.25 bits", "tokenizer"):
        assert word in shown
    assert "every checksum is right" in run("verify", target).stdout
    assert json.loads(run("verify", target, "--json").stdout)["damaged"] == []
    with open(target / "pages.bin", "r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    broken = run("verify", target)
    assert (broken.returncode, len(broken.stderr.splitlines())) == (1, 1)
    assert "layer 0 attention at offset 0: wrong checksum" in broken.stderr


def test_doctor(tmp_path: Path):
    facts = json.loads(run("doctor", "--folder", tmp_path, "--json").stdout)
    assert facts["kernels"]["chosen"] in facts["kernels"]["available"]
    assert facts["storage"]["read_bytes_per_s"]["4"] > 0
    assert list(tmp_path.iterdir()) == []
    assert "kernels" in run("doctor", "--folder", tmp_path).stdout


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


def test_names_with_brackets_are_printed_as_they_are(demo_package: Package, tmp_path: Path):
    package = shutil.copytree(demo_package.path, tmp_path / "[bold] [/x]" / "y.estream")
    for command in ("inspect", "verify"):
        result = run(command, package)
        assert result.returncode == 0
        assert str(package) in result.stdout


def test_a_prompt_from_an_editor_or_standard_input_is_the_prompt(demo_package: Package, tmp_path: Path):
    (tmp_path / "prompt.txt").write_text(PROMPT + "\n")
    from_text = json.loads(run("run", demo_package.path, "--prompt", PROMPT, "--json").stdout)
    for path, text in ((tmp_path / "prompt.txt", ""), ("-", PROMPT + "\n")):
        command = estream_command("run", demo_package.path, "--prompt-file", path, "--json")
        result = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        assert json.loads(result.stdout)["top"] == from_text["top"]


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


def test_bench_prints_rows_in_llama_benchs_form(demo_package: Package):
    result = run("bench", demo_package.path, "-p", "8,40", "-r", "2", "--memory", "300MiB", "--profile")
    assert result.returncode == 0, result.stderr
    head, _, *rows = result.stdout.splitlines()[:4]
    assert [c.strip() for c in head.strip("|").split("|")][5:8] == ["test", "t/s", "TTFT s"]
    assert [row.split("|")[6].strip() for row in rows] == ["pp8", "pp40"]
    assert "products" in result.stdout
    assert "between pages" in result.stdout
    row = json.loads(run("bench", demo_package.path, "-p", "24", "-r", "2", "-o", "json").stdout)[0]
    assert row["test"] == "pp24"
    assert row["work_s"]["products"] > 0
    assert sum(row["work_s"].values()) == pytest.approx(row["ttft_s"])
    head, line = run("bench", demo_package.path, "-p", "24", "-r", "1", "-o", "csv").stdout.splitlines()
    assert dict(zip(head.split(","), line.split(","), strict=True))["test"] == "pp24"
    for lengths in ("x", "", "0", "8,,9"):
        wrong = run("bench", demo_package.path, "-p", lengths)
        assert wrong.returncode == 2
        assert "--prompt-tokens" in wrong.stderr
