"""Actors that keep a package open, and a dataset mapped over them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before Ray is imported, which reads it then: nothing is reported to anyone unless the user asks for it.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import ray.data

import estream
from estream.api.model import Model
from estream.errors import EstreamError, OptionError
from estream.host.sizes import format_bytes, parse_bytes

Rows = list[dict[str, Any]]
#: Makes rows of rows, with a loaded model.
Work = Callable[[Rows], Rows]
MakeWork = Callable[[Model], Work]


@dataclass(frozen=True)
class Pool:
    """How many actors there are, and how each loads the package.

    Args:
        actors: their number, on whichever nodes have room for them.
        memory: the budget of each actor's process, such as "1GiB".
        threads: compute threads of each; None for an even share of the cluster's processors.
        device: "cpu" or "qnn".
        activations: "int8" or "float".

    """

    actors: int
    memory: str | int
    threads: int | None = None
    device: str = "cpu"
    activations: str = "int8"

    def placed(self) -> "Pool":
        """With threads, as the connected cluster has processors.

        Raises:
            OptionError: the cluster has not so many processors or not so much memory.

        """
        found = ray.cluster_resources()
        cpus, memory = int(found.get("CPU", 0)), int(found.get("memory", 0))
        threads = max(1, cpus // self.actors) if self.threads is None else self.threads
        budget = parse_bytes(self.memory)
        if self.actors * threads > cpus or self.actors * budget > memory:
            raise OptionError(
                f"{self.actors} actors of {threads} threads and {format_bytes(budget)} need more than the cluster has: {cpus} "
                f"processors and {format_bytes(memory)}; ask for fewer --actors, --threads or less --memory"
            )
        return Pool(self.actors, self.memory, threads, self.device, self.activations)


def map_dataset(
    dataset: Any,
    package: str | Path,
    make: MakeWork,
    pool: Pool,
    *,
    rows: int | None = None,
    failed: Callable[[EstreamError], Rows] | None = None,
) -> Any:
    """Map a ``ray.data.Dataset`` over actors; lazily, as Ray Data does.

    Args:
        dataset: its rows are dicts.
        package: the package folder, which each node that an actor runs on can read.
        make: called once in each actor with its model; what it returns makes new rows of some rows.
        pool: the actors.
        rows: how many rows go to ``make``'s work at once; None for a block of the dataset.
        failed: makes rows of what estream refuses, instead of the exception that ends the dataset.

    Raises:
        OptionError: the cluster has no room for the actors. Ray must be connected.

    """
    placed = pool.placed()
    return dataset.map_batches(
        _Actor,
        fn_constructor_args=(str(Path(package).absolute()), make, placed, failed),
        batch_size=rows,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=placed.actors, max_tasks_in_flight_per_actor=2),
        # Actors that held every processor would wait for ever for those who read the dataset.
        num_cpus=0,
        memory=parse_bytes(placed.memory),
    )


class _Actor:
    """One process of the pool. It opens the package at its first rows, so that a refusal is an answer and no lost actor."""

    def __init__(self, package: str, make: MakeWork, pool: Pool, failed: Callable[[EstreamError], Rows] | None) -> None:
        self._package, self._make, self._pool, self._failed = package, make, pool, failed
        self._work: Work | None = None

    def __call__(self, batch: Any) -> Any:
        import pyarrow

        try:
            made = self._opened()(batch.to_pylist())
        except EstreamError as error:
            if self._failed is None:
                raise
            made = self._failed(error)
        return pyarrow.Table.from_pylist(made)

    def _opened(self) -> Work:
        if self._work is None:
            pool: Sequence[Any] = (self._pool.memory, self._pool.threads, self._pool.device, self._pool.activations)
            self._work = self._make(estream.load(self._package, *pool))
        return self._work
