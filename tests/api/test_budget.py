"""End to end: the budget is kept, measured from outside, in real control groups."""

import json

import pytest
from cgroup import estream_command, memory_group

from estream.conversion.synth import synthesize
from estream.host.sizes import GiB, MiB, parse_bytes
from estream.package.package import Package


def test_the_default_budget_follows_the_control_group(demo_package: Package):
    with memory_group(400 * MiB) as group:
        run = group.run(estream_command("run", demo_package.path, "--tokens", "64", "--json"))
    facts = json.loads(run.stdout)
    assert facts["budget_bytes"] < 400 * MiB
    assert facts["peak_rss_bytes"] <= facts["budget_bytes"]


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
