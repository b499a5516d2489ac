"""The budget is kept, measured from outside, in real control groups."""

import json
from pathlib import Path

import pytest
from cgroup import cpu_group, estream_command, memory_group

from estream.conversion.synth import synthesize
from estream.errors import OptionError
from estream.host import limits
from estream.host.sizes import GiB, MiB, format_bytes, parse_bytes
from estream.package.package import Package


def test_sizes_are_read_and_written():
    assert [parse_bytes(t) for t in ("1GiB", "600 MiB", "1.5g", "2kb", "123")] == [GiB, 600 * MiB, 3 * GiB // 2, 2000, 123]
    for text in ("", "GiB", "1 parsec", "-1", "0"):
        with pytest.raises(OptionError):
            parse_bytes(text)
    assert [format_bytes(n) for n in (5, 3 * MiB, 1.5 * GiB)] == ["5 B", "3 MiB", "1.5 GiB"]


def test_the_default_budget_follows_the_control_group(demo_package: Package):
    with memory_group(400 * MiB) as group:
        run = group.run(estream_command("run", demo_package.path, "--tokens", "64", "--json"))
    facts = json.loads(run.stdout)
    assert facts["budget_bytes"] < 400 * MiB
    assert facts["peak_rss_bytes"] <= facts["budget_bytes"]


def test_doctor_sees_limits(tmp_path: Path):
    with memory_group(500 * MiB) as group:
        facts = json.loads(group.run(estream_command("doctor", "--folder", tmp_path, "--json")).stdout)
    assert facts["memory"]["cgroup_limit"] == 500 * MiB
    assert facts["memory"]["default_budget"] < 500 * MiB
    with cpu_group(1.5) as group:
        facts = json.loads(group.run(estream_command("doctor", "--folder", tmp_path, "--json")).stdout)
    assert facts["cpu"]["quota"] == 1.5
    assert facts["cpu"]["threads"] == 1


def test_machine_facts_are_plausible():
    assert 0 < limits.resident_bytes() <= limits.peak_resident_bytes()
    assert limits.default_threads() >= 1
    assert limits.default_budget() < limits.resident_bytes() + limits.available_bytes()


@pytest.fixture(scope="module")
def olmoe(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return synthesize("olmoe-1b-7b", tmp_path_factory.mktemp("olmoe") / "olmoe.estream")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "tokens"), [("1GiB", 256), ("1GiB", 4096), ("512MiB", 256), ("512MiB", 1024), ("512MiB", 4096)]
)
def test_a_model_of_four_gigabytes_runs_in_a_small_group(olmoe: Package, limit: str, tokens: int):
    with memory_group(parse_bytes(limit)) as group:
        run = group.run(estream_command("run", olmoe.path, "--tokens", str(tokens), "--memory", limit, "--json"))
        peak = group.peak_bytes
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    assert facts["direct_io"] is True
    assert facts["peak_rss_bytes"] <= parse_bytes(limit)
    assert peak <= parse_bytes(limit)
    assert facts["bytes_read"] <= 1.05 * olmoe.bytes


@pytest.mark.slow
def test_the_published_shape_gives_the_same_bits_at_any_budget(olmoe: Package):
    answers = set()
    for memory in ("600MiB", "1GiB", "8GiB"):
        for threads in ("1", "2"):
            with memory_group(12 * GiB) as group:
                run = group.run(
                    estream_command(
                        "run",
                        olmoe.path,
                        "--tokens",
                        "200",
                        "--memory",
                        memory,
                        "--threads",
                        threads,
                        "--top",
                        "2000",
                        "--json",
                    )
                )
            answers.add(json.dumps(json.loads(run.stdout)["top"]))
    assert len(answers) == 1
