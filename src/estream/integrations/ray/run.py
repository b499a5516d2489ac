"""A command's rows, read by actors."""

import logging
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import ray
import ray.data

from estream.api.model import Model
from estream.cli.output import err, print_json
from estream.cli.results import line_of, settings_text
from estream.cli.rows import Place, Row, open_rows
from estream.cli.services import Jobs, MakeJobs, Work, progress
from estream.errors import EstreamError, OptionError
from estream.host.sizes import MiB
from estream.integrations.ray.parts import Block, Parts, blocks_of, identity_of
from estream.integrations.ray.pool import Pool, Rows, map_dataset
from estream.package.package import open_package
from estream.services.jobs import Job, answer_in_order

#: Descriptions of blocks and their results lie there, on disk beyond it.
_OBJECT_STORE = 200 * MiB


@dataclass(frozen=True)
class Cluster:
    """Where the actors are: an ``address`` of a running cluster, None for one of this machine's that ends with the command."""

    actors: int
    block: int
    address: str | None


def run_on(cluster: Cluster, work: Work, make: MakeJobs) -> None:
    """Read the rows in blocks, and write a result for each. Blocks that were finished before are not read again.

    Raises:
        OptionError: an option does not suit this; input or output cannot be used.
        Others: as the command in one process.

    """
    begin = time.perf_counter()
    if work.load.memory is None:
        raise OptionError("give --memory, the budget of each actor")
    if work.target.path is None or work.target.temporary or str(work.input) == "-":
        raise OptionError("actors need --output, and an input that is a file")
    open_package(work.path, work.load.device)
    target = work.target
    if target.path is not None and target.resume and target.path.exists():
        err.print(f"{target.path}: is finished already", soft_wrap=True)
        return
    target.check()
    blocks = blocks_of(work.input, cluster.block)
    settings = settings_text(work.kind())
    parts = Parts(target, {"settings": settings, "input": identity_of(work.input), "block": cluster.block})
    missing = [block for block in blocks if not parts.has(block.number)]
    rows, pool = sum(block.count for block in missing), _pool(cluster, work)
    with progress(work.name, sum(block.count for block in blocks)) as advance:
        advance(sum(block.count for block in blocks) - rows)
        with _connected(cluster.address):
            task = BlockTask(work.input.absolute(), settings, make)
            for block, lines in _results(missing, work.path, task, pool):
                parts.write(block.number, lines)
                advance(block.count)
    parts.finish(len(blocks))
    _tell(work, {"rows": rows, "skipped": sum(block.count for block in blocks) - rows, "actors": cluster.actors}, begin)


def _pool(cluster: Cluster, work: Work) -> Pool:
    assert work.load.memory is not None
    return Pool(cluster.actors, work.load.memory, work.load.threads, work.load.device, work.load.activations)


@dataclass(frozen=True)
class BlockTask:
    """What an actor does with blocks: it reads their rows by itself."""

    input: Path
    settings: str
    make: MakeJobs

    def __call__(self, model: Model) -> "_Blocks":
        jobs, before = self.make(model)
        if before is not None:
            next(answer_in_order(model, [before]))
        return _Blocks(self, model, jobs)


@dataclass(frozen=True)
class _Blocks:
    task: BlockTask
    model: Model
    jobs: Jobs

    def __call__(self, blocks: Rows) -> Rows:
        return [{"number": block["number"], "lines": self._lines(block), "error": b""} for block in blocks]

    def _lines(self, block: dict[str, Any]) -> bytes:
        place = Place(block["index"], block["offset"], block["line"])
        waiting: list[Row] = []

        def taken() -> Iterator[Job[Any]]:
            for row in islice(open_rows(self.task.input, place).rows, block["count"]):
                waiting.append(row)
                yield self.jobs(row)

        lines: list[str] = []
        for answers in answer_in_order(self.model, taken()):
            lines += [line_of(row, each.to_json(), self.task.settings) for row, each in zip(waiting, answers, strict=False)]
            del waiting[: len(answers)]
        return "".join(lines).encode()


def _failed(error: EstreamError) -> Rows:
    return [{"number": -1, "lines": b"", "error": pickle.dumps(error)}]


def _results(blocks: list[Block], package: Path, task: BlockTask, pool: Pool) -> Iterator[tuple[Block, bytes]]:
    """Each block with its lines, as they are finished. Raises what an actor raised."""
    if not blocks:
        return
    numbers = {block.number: block for block in blocks}
    # Each is a task of its own: what an actor was doing when it died is done by another one.
    dataset = ray.data.from_items([block.to_row() for block in blocks], override_num_blocks=len(blocks))
    mapped = map_dataset(dataset, package, task, pool, failed=_failed)
    for batch in mapped.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for found in batch.to_pylist():
            if found["error"]:
                # From a process of ours.
                raise pickle.loads(found["error"])  # noqa: S301
            yield numbers[found["number"]], found["lines"]


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connected to a cluster that runs, or to one of this machine that ends with the block."""
    local = {} if address else {"object_store_memory": _OBJECT_STORE, "include_dashboard": False}
    # Ray prints there what happens to its processes; standard output is for facts.
    stopping = signal.getsignal(signal.SIGTERM)
    with redirect_stdout(sys.stderr):
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **local)
        # Ray takes the signal for itself, and would end without saying so.
        signal.signal(signal.SIGTERM, stopping)
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        try:
            yield
        finally:
            ray.shutdown()


def _tell(work: Work, facts: dict[str, Any], begin: float) -> None:
    seconds = time.perf_counter() - begin
    if work.as_json:
        print_json(facts | {"seconds": seconds})
        return
    before = f", {facts['skipped']} were there" if facts["skipped"] else ""
    err.print(f"{facts['rows']} rows by {facts['actors']} actors{before}; {seconds:.1f} s", soft_wrap=True)
