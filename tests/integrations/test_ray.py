"""Rows over Ray's actors: the same as in one process, whoever dies meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import ray
import ray.data
from command import run
from ray import cloudpickle

from estream.cli.results import settings_text
from estream.cli.services import MakeJobs, Work, running_with
from estream.errors import OptionError
from estream.integrations.ray import Pool, map_dataset
from estream.integrations.ray.parts import blocks_of
from estream.integrations.ray.run import BlockTask
from estream.package.package import Package

pytestmark = pytest.mark.integrations

LABELS = "games,net,python,libs"
ROWS, BLOCK = 400, 10
STORE = 200_000_000


@pytest.fixture(scope="module")
def rows(packages: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    found = [{"id": f"p{i}", "text": row["description"][:120]} for i, row in enumerate(packages)]
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(demo_package: Package, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process writes."""
    path = tmp_path_factory.mktemp("whole") / "out.jsonl"
    result = run("classify", demo_package.path, "--labels", LABELS, "--input", rows, "--output", path, "--memory", "4GiB")
    assert result.returncode == 0, result.stderr
    assert len(lines(path)) == ROWS
    return path


class Command:
    """``classify`` over actors, in a process of its own."""

    def __init__(self, package: Package, rows: Path, output: Path, *more: str) -> None:
        self.parts = output.with_name(output.name + ".parts")
        command = [sys.executable, "-m", "estream.integrations.ray", "classify", package.path, "--labels", LABELS]
        command += ["--input", rows, "--output", output, "--memory", "1GiB", "--threads", "1", "--block", str(BLOCK), "--json"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([*map(str, command), *more], **pipes)

    def wait_for_parts(self, count: int) -> dict[str, int]:
        """The finished blocks, with the time of each, once there are so many."""
        while len(found := list(self.parts.glob("*.jsonl"))) < count:
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)
        return {path.name: path.stat().st_mtime_ns for path in found}

    def facts(self) -> dict[str, Any]:
        out, errors = self.process.communicate()
        assert self.process.returncode == 0, errors[-3000:]
        return json.loads(out)


def _actors(pid: int) -> list[int]:
    """Processes below this one that map rows."""
    found, below = [], [pid]
    while below:
        at = below.pop()
        for children in Path(f"/proc/{at}/task").glob("*/children"):
            below += map(int, children.read_text().split())
        if Path(f"/proc/{at}/cmdline").read_bytes().startswith(b"ray::MapWorker"):
            found.append(at)
    return found


def test_an_actor_that_dies_loses_no_row(demo_package: Package, rows: Path, whole: Path, tmp_path: Path):
    output = tmp_path / "out.jsonl"
    command = Command(demo_package, rows, output, "--actors", "2")
    command.wait_for_parts(2)
    actors = _actors(command.process.pid)
    assert actors
    os.kill(actors[0], signal.SIGKILL)
    assert len(list(command.parts.glob("*.jsonl"))) < ROWS // BLOCK  # in the middle
    assert command.facts().items() >= {"rows": ROWS, "skipped": 0, "actors": 2}.items()
    assert output.read_bytes() == whole.read_bytes()
    assert not command.parts.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_repeats_no_finished_block(
    demo_package: Package, rows: Path, whole: Path, tmp_path: Path, number: int
):
    output = tmp_path / "out.parquet"
    command = Command(demo_package, rows, output, "--actors", "1")
    command.wait_for_parts(3)
    command.process.send_signal(number)
    out, errors = command.process.communicate()
    assert command.process.returncode == (-number if number == signal.SIGKILL else 128 + number), errors[-3000:]
    assert out == ""
    assert not output.exists()
    again = Command(demo_package, rows, output, "--actors", "1")
    again.process.communicate()
    assert again.process.returncode == 2  # not without --resume
    before = Command.wait_for_parts(command, 0)
    resumed = Command(demo_package, rows, output, "--actors", "2", "--resume")
    during = resumed.wait_for_parts(len(before) + 1)
    facts = resumed.facts()
    assert facts["rows"] + facts["skipped"] == ROWS
    assert facts["skipped"] == len(before) * BLOCK
    assert before.items() <= during.items()  # not written anew
    assert pyarrow.parquet.read_table(output).to_pylist() == lines(whole)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init("local", num_cpus=2, object_store_memory=STORE, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_two_actors_give_the_rows_of_one(cluster: None, demo_package: Package, rows: Path, tmp_path: Path):
    """Through Python."""
    source = [{"index": i, "text": row["text"]} for i, row in enumerate(lines(rows)[:60])]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(source), tmp_path / "rows.parquet", row_group_size=20)

    def make(model):
        def work(found):
            answers = model.score([row["text"] for row in found], truncate=True)
            return [{"index": row["index"], "logprob": answer.logprob} for row, answer in zip(found, answers, strict=True)]

        return work

    # In one block of a reader that needs a processor, and in several that lie there.
    datasets = {"read": lambda: ray.data.read_parquet(str(tmp_path / "rows.parquet"))}
    datasets["there"] = lambda: ray.data.from_items(source, override_num_blocks=4)
    found = []
    for name, actors in (("there", 1), ("there", 2), ("read", 2)):
        mapped = map_dataset(datasets[name](), demo_package.path, make, Pool(actors, "1GiB", 1), rows=16)
        found.append(sorted(mapped.take_all(), key=lambda row: row["index"]))
    assert [row["index"] for row in found[0]] == list(range(60))
    assert found[0] == found[1] == found[2]


def test_actors_without_room_are_refused(cluster: None, demo_package: Package):
    dataset = ray.data.range(4)
    for pool in (Pool(3, "1GiB", 1), Pool(2, "900GiB", 1)):
        with pytest.raises(OptionError, match="need more than the cluster has: 2 processors and"):
            map_dataset(dataset, demo_package.path, lambda model: list, pool)


COMMANDS = {
    "score": (),
    "classify": ("--labels", LABELS, "--prior"),
    "embed": ("--dimensions", "16"),
    "rerank": ("--template",),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_the_same_in_blocks(name: str, demo_package: Package, rows: Path, tmp_path: Path):
    """What an actor does, here; as it is sent to one."""
    source, output, options = tmp_path / "rows.jsonl", tmp_path / "out.jsonl", COMMANDS[name]
    texts = [row["text"] for row in lines(rows)[:7]]
    values = [{"query": "games", "documents": texts[i : i + 2]} if name == "rerank" else {"text": texts[i]} for i in range(6)]
    source.write_text("".join(json.dumps(each) + "\n" for each in values))
    if name == "rerank":
        (tmp_path / "template.json").write_text(json.dumps({"text": "{query}: {document} ", "yes": "y", "no": "n"}))
        options = (*options, str(tmp_path / "template.json"))
    common = (name, demo_package.path, "--input", source, "--output", output, "--memory", "4GiB", *options)
    assert run(*common).returncode == 0
    found: list[bytes] = []

    def runner(work: Work, make: MakeJobs) -> None:
        from estream.api.model import Model
        from estream.package.package import open_package

        task = cloudpickle.loads(cloudpickle.dumps(BlockTask(work.input, settings_text(work.kind()), make)))
        with Model(open_package(work.path), work.load) as model:
            read = task(model)
            found.extend(read([block.to_row()])[0]["lines"] for block in blocks_of(work.input, 4))

    with running_with(runner):
        result = run(*(tmp_path / "other.jsonl" if each is output else each for each in common))
    assert result.returncode == 0, result.stderr
    assert len(found) == 2
    assert b"".join(found) == output.read_bytes()


def _over_actors(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "estream.integrations.ray", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_row_that_cannot_be_read_is_named_as_by_the_command(demo_package: Package, tmp_path: Path):
    source = tmp_path / "rows.jsonl"
    source.write_text('{"text": "a"}\n{"text": "b"}\n{"text": 3}\n')
    common = ("score", demo_package.path, "--input", source, "--output", tmp_path / "out.jsonl", "--memory", "1GiB")
    result = _over_actors(*common, "--actors", "1", "--block", "2")
    assert result.returncode == 1
    assert "rows.jsonl: line 3: 'text' must be a text, found 3" in result.stderr.splitlines()[-1]


def test_wrong_usage_is_said_in_one_line(demo_package: Package, rows: Path, tmp_path: Path):
    output = tmp_path / "out.jsonl"
    for arguments, message in (
        (("--text", "a"), "actors read rows"),
        (("--input", rows, "--output", output), "give --memory"),
        (("--input", rows, "--memory", "1GiB"), "actors need --output"),
        (("--input", rows, "--output", output, "--memory", "1GiB", "--actors", "0"), "--actors"),
    ):
        result = _over_actors("score", demo_package.path, *arguments)
        assert result.returncode == 2
        assert message in result.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_parts_of_something_else_are_refused(demo_package: Package, rows: Path, tmp_path: Path):
    from estream.cli.results import Target
    from estream.integrations.ray.parts import Parts

    target = Target(tmp_path / "out.jsonl", resume=True)
    Parts(target, {"settings": "a", "block": 10}).write(0, b"{}\n")
    assert Parts(target, {"settings": "a", "block": 10}).has(0)
    with pytest.raises(OptionError, match="was made of another input, or with other settings"):
        Parts(target, {"settings": "b", "block": 10})
    with pytest.raises(OptionError, match="exists; --resume goes on"):
        Parts(Target(target.path, resume=False), {"settings": "a", "block": 10})
